"""The state machines, each written once, and the table compiled from them."""
