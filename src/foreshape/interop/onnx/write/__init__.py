"""The writing of programs as ONNX's models: `models` begins it, `graph_writer` goes through the ops, and `foreshape.interop.forms` has their rules."""
