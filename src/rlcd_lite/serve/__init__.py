"""A local server that speaks the wires of hosted decision models (extra ``serve``)."""
