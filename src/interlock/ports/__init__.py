"""The ports: what the inner rooms ask of the outer ones, as Protocols with their contracts."""
