"""What carriers of telephone calls ask over HTTP when a call comes in, one module for each.

A webhook is asked what is to become of a call, and its answer says: stream it to us. Each module
knows how its carrier signs what it asks, what it calls the numbers, and in which language it takes
the answer. They are pure: no I/O, no clock. `agent/phone_webhooks.py` serves them.
"""
