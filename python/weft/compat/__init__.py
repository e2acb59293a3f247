"""Other systems' names for what weft does."""
