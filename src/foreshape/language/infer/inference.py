"""`Inference`: the specs of all variables of a program, from its inputs and parameters on."""

from __future__ import annotations

from foreshape.core.gc_pause import collector_waits
from foreshape.errors import DescriptionError
from foreshape.language.infer.array_elements import forget_elements
from foreshape.language.infer.op_inference import infer
from foreshape.language.infer.walk import infer_in_doubt, mark_unknown
from foreshape.language.program.guards import Guards
from foreshape.language.program.inference_state import InferenceState
from foreshape.language.program.op import Op
from foreshape.language.program.unknown import is_unknown


class Inference(InferenceState):
    """The inference of one program, held by the program."""

    __slots__ = ()

    infer = staticmethod(infer)

    def forget(self) -> None:
        """Drop inferred facts, and keep the declared ones."""
        for op in self.program.all_ops():
            if op.operator is None or op.operator.described_results:
                continue
            for name in op.output_names():
                variable = op.block.find(name)
                if variable is not None and not variable.persistable and variable.op is op:
                    variable.forget()
        self.guards = Guards()
        self.stale = True
        self.program.touch()

    def diagnose(self, stop_at: int) -> tuple[list[Op], list[DescriptionError]]:
        """Infer all ops; return the ops of unknown operators, and the errors of others, at most so many."""
        program = self.program
        self.stale = False
        program.names = (-1, {})
        unknown, errors = self._infer_all(stop_at)
        program.names = (-1, {})  # variables described nowhere now have descriptions
        self.stale = bool(errors)  # whoever builds on it or runs it is told again
        return unknown, errors

    @collector_waits
    def _infer_all(self, stop_at: int) -> tuple[list[Op], list[DescriptionError]]:
        program = self.program
        self.guards = Guards()
        for variable, spec in self.entry_specs.items():
            variable.inferred_spec = spec
        self.entry_specs.clear()
        records = program.blocks[0].records
        if records is not None and len(program.blocks) == 1:
            self.uncertain = False
            if records.infer(self.guards):
                return [], []
            self.guards = Guards()
        forget_elements(program)
        unknown = [op for op in program.all_ops() if is_unknown(op)]
        errors: list[DescriptionError] = []
        self.uncertain = bool(unknown)
        inner = {i for op in program.all_ops() if op.operator is not None for i in op.sub_block_indices()}
        for block in program.blocks:
            for op in block.ops if block.idx not in inner else ():  # the others are inferred with their owning op
                if self.uncertain and is_unknown(op):
                    mark_unknown(op)
                    continue
                if self.uncertain and any(not v.known for v in op.input_variables()):
                    mark_unknown(op)
                    continue
                try:
                    infer_in_doubt(op)
                except DescriptionError as error:
                    errors.append(error)
                    self.uncertain = True
                    if len(errors) >= stop_at:
                        return unknown, errors
                    mark_unknown(op)
        return unknown, errors
