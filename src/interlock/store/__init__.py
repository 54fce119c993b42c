"""Durable state: the engines behind :class:`interlock.ports.store.Store`."""
