"""Operators of other frameworks' programs for many machines without a place here, and why."""

from __future__ import annotations

from typing import Final

from foreshape.language.operator.registry import refuse

ELSEWHERE: Final = {
    **dict.fromkeys(("send_v2", "recv_v2", "partial_send", "partial_recv", "partial_allgather"),
                    "it is of a program that is cut into stages for ranks, of which each has other ops; here all ranks of a run have the same"),
    **dict.fromkeys(("global_scatter", "global_gather", "limit_by_capacity", "prune_gate_by_capacity", "random_routing", "assign_pos"),
                    "rows that each rank sends as many of as it likes to each (mixtures of experts) are not planned here"),
    **dict.fromkeys(("c_comm_init", "c_comm_init_all", "c_comm_init_multitrainer", "c_gen_nccl_id", "c_gen_xccl_id", "c_gen_bkcl_id"),
                    "ranks are joined by the run, as fs.train(..., ranks=...) does, and not by a program: leave it out"),
    **dict.fromkeys(("send", "recv", "send_barrier", "fetch_barrier", "send_and_recv", "listen_and_serv", "distributed_lookup_table",
                     "distributed_push_sparse", "heter_listen_and_serv", "fake_init", "pull_sparse", "pull_sparse_v2", "pull_box_sparse",
                     "pull_box_extended_sparse", "pull_gpups_sparse", "push_dense"),
                    "it speaks to parameter servers, of which there are none here: fs.split_tables() divides tables over the ranks"),
    **dict.fromkeys(("p_send", "p_recv", "p_send_array", "p_recv_array", "dist_concat", "copy_cross_scope"),
                    "it is of a program that is cut into stages for ranks, of which each has other ops; here all ranks of a run have the same"),
    **dict.fromkeys(("read", "create_py_reader", "create_double_buffer_reader", "queue_generator", "enqueue", "dequeue"),
                    "it takes minibatches from a queue of the process that wrote the program, which no file holds: cut the program behind it, "
                    "and feed what it gives by name"),
}  # fmt: skip

for _type, _why in ELSEWHERE.items():
    refuse(_type, _why)
