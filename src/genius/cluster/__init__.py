"""More than one machine: Ray encodes and serves. Needs the extra `cluster`; nothing else imports Ray."""
