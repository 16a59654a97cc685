"""JSON from unknown sources: counted before it is parsed (`bounded_json`), and read by a declared schema (`readers`)."""
