"""The writing of programs as modules of torch: `program_source` begins it, `plain_writer` goes through the ops, `foreshape.interop.forms` has their rules."""
