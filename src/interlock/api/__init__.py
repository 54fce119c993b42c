"""The HTTP API: agents that come for their work, and everybody who asks or tells from outside.

Three parts. The *desk* (:mod:`interlock.api.desk`) is on trio's loop, with the service: every request is one call of it.
The *doors* (Litestar handlers) are on an asyncio loop in a thread of the HTTP server, and know of wire shapes only. The
*bridge* carries calls from there to here. So the server's speed is its own, and the service is used by one loop, as ever.
"""
