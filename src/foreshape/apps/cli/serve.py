"""The command ``serve``: its options as limits, and its words on the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from foreshape.apps.cli import completion
from foreshape.apps.cli.arguments import EmbedderRowScales, Operators
from foreshape.apps.cli.command_options import ServeOptions, refuse
from foreshape.apps.cli.output import plain_errors, print_plain, printing


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A saved network, the folder of an embedder or a language model, NAME=MODEL, or a folder of models. Versions may have folders.",
        ),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    batch: Annotated[int, typer.Option("--batch", min=1, help="The largest number of examples that are computed together.")] = 64,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="BYTES",
            help="All memory of the models together, as 4GiB, beside Python and torch. Default: nine tenths of the machine's, for runs.",
        ),
    ] = None,
    body: Annotated[str, typer.Option("--body", metavar="BYTES", help="The largest size of a request.")] = "64MiB",
    seconds: Annotated[float, typer.Option("--seconds", metavar="TIME", help="The time limit of a request.")] = 30.0,
    queue: Annotated[int, typer.Option("--queue", min=1, help="The largest number of requests that wait for one model.")] = 1000,
    connections: Annotated[int, typer.Option("--connections", min=1, help="The largest number of open connections.")] = 8000,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="The number of threads of the kernels.")] = None,
    users: Annotated[int, typer.Option("--users", min=1, help="The largest number of texts that a language model writes at the same time.")] = 16,
    context: Annotated[int | None, typer.Option("--context", min=2, help="The longest text of a language model in tokens, prompt and answer together.")] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="The device of networks and language models: cpu or cuda. Embedders compute on the processor.",
            autocompletion=completion.devices,
        ),
    ] = "cpu",
    precision: Annotated[
        Literal["fp32", "bf16", "auto"],
        typer.Option("--precision", help="The precision of products and convolutions of networks: auto is bf16 where the processor has instructions for it."),
    ] = "fp32",
    weights: Annotated[
        Literal["int8", "int4"] | None,
        typer.Option("--weights", help="The weights of language models, packed in 8 or 4 bits as they are read."),
    ] = None,
    rows: Annotated[
        Literal["fp32", "int8"],
        typer.Option("--rows", help="The rows in products with packed weights of language models: int8 is faster for prompts and several users."),
    ] = "fp32",
    ragged: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(
            "--ragged",
            help="Compute networks of padded texts without padding: auto where the results are proved to be the same; always refuses other networks, and gives "
            "zeros at padding.",
        ),
    ] = "never",
    mask: Annotated[str, typer.Option("--mask", metavar="NAME", help="With --ragged: the input with the mask of padded texts.")] = "attention_mask",
    shared_prefixes: Annotated[
        bool,
        typer.Option(
            "--shared-prefixes/--no-shared-prefixes",
            help="Texts of a language model that begin with the same words compute them once. Times tell a client that another began so.",
        ),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log each request.")] = False,
    row_scales: EmbedderRowScales = False,
    operators: Operators = None,
) -> None:
    """Serve saved networks over HTTP, by the Open Inference Protocol, version 2: clients of Triton and KServe work. Simultaneous requests are
    computed together, and changed files are opened again. A page about each network is at /, metrics for Prometheus are at /metrics."""
    from foreshape.apps.cli.command_options import ServeOptions
    from foreshape.apps.cli.user_operators import import_operators

    if mask != "attention_mask" and ragged == "never":
        refuse("--mask", "networks of padded texts", "--ragged is not there")
    options = ServeOptions(
        port,
        host,
        batch,
        memory,
        body,
        seconds,
        queue,
        connections,
        threads,
        users,
        context,
        device,
        precision,
        weights,
        rows,
        ragged,
        mask,
        quiet,
        row_scales,
        shared_prefixes,
    )
    with plain_errors():
        import_operators(operators)
        _run(models, options)


def _run(models: Sequence[str], options: ServeOptions) -> None:
    """Serve until a signal to stop."""
    from foreshape.compiler.memory import bytes_of
    from foreshape.errors import needs

    if not options.seconds > 0:
        raise typer.BadParameter("is a time of more than 0 seconds", param_hint="--seconds")
    with needs("foreshape serve", "serve"):
        from foreshape.apps.serving.served_embedder import Embedders
        from foreshape.apps.serving.served_network import Networks
        from foreshape.apps.serving.served_writer import LanguageModels
        from foreshape.apps.serving.server import bound, log_to_stderr, make_service
        from foreshape.apps.serving.server import serve as serve_until_stopped
        from foreshape.apps.serving.server_limits import ServerLimits

    usual = ServerLimits()
    size = bytes_of(options.body)
    limits = usual._replace(
        batch=options.batch,
        memory=None if options.memory is None else bytes_of(options.memory),
        body=size,
        json=min(usual.json, size),
        pending=max(usual.pending, size),
        seconds=options.seconds,
        queue=options.queue,
        connections=options.connections,
    )
    log_to_stderr(not options.quiet)

    def say(text: str) -> None:
        with printing():
            print_plain(text)

    networks = Networks(
        options.threads,
        bounded=options.memory is not None,
        device=options.device,
        precision=options.precision,
        ragged=options.ragged,
        mask=options.mask,
    )
    shares = None if options.shared_prefixes else False
    writers = LanguageModels(options.users, options.context, options.threads, options.device, options.weights, shares, options.rows)
    kinds = [Embedders(networks, options.threads, options.row_scales), networks, writers]
    with bound(options.host, options.port) as address:
        serve_until_stopped(make_service(models, limits, kinds), address, say)
