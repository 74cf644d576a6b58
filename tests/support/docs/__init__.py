"""The commands and programs of a document, in the order in which a reader types them."""
