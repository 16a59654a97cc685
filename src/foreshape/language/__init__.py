"""The language of networks: operators, programs of them, and all knowledge of a program before it runs.

In come calls of layers, files and texts; out goes a `Program` whose every value has a spec. Nothing here needs PyTorch.

- `operator`: the language in which operators are written; `ops`: the operators, one class each, in folders by family.
- `program`: `Program`, `Block`, `Op`, `Variable`. Begin reading here.
- `infer`: specs of results, by the operators' rules; `conditions`: the sizes that an input takes.
- `text`, `views`, `wire`: a program as text, as tables and drawings, and as bytes of PaddlePaddle's format.
"""
