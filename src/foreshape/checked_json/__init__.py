"""JSON that nobody vouches for: counted before it is parsed (`bounded_json`), and read by a declared schema (`readers`)."""
