"""Not there yet; importing it says so."""

raise ImportError(
    "ray.experimental.tf_utils (TensorFlowVariables) is not available yet in this version of weft; pass the weights "
    "as a dict of arrays instead"
)
