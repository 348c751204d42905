"""Telephone carriers and switchboards, one module for each: media stream, webhook, signatures.

A stream's protocol turns a carrier's frames into events (`media_stream.PhoneEvent`), and audio,
marks and orders into the carrier's frames; `agent/telephony/media_session.py` couples one to a
session. A webhook (`webhook.Webhook`) is asked what to do with a call, and answers: stream it here;
`agent/telephony/webhooks.py` serves it. All are pure: no I/O, no clock.
"""
