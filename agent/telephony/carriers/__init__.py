"""What carriers and switchboards say on their media sockets, one module for each.

A dialect turns a carrier's frames into `line.PhoneEvent`s, and audio, marks and orders into the
carrier's frames. It is pure: no I/O, no clock, nothing of turns or models.
`agent/telephony/media_session.py` couples one to a session.
"""
