"""Networks of torch as programs, by torch.export, and programs as modules of torch.

`exporting` makes the graph, `torch_importer` goes through it, and the functions of `foreshape.interop.forms` read each of ATen's operators.
`module_import` does it all for a module, and `torch_model` is the network, called as the module is. `to_torch` is the other way.
"""
