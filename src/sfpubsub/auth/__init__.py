"""Sessions: who is calling, and how a new one is obtained.

`session` has the session and who supplies one; `oauth` the flows and what the settings choose,
`sf_cli` and `simple_salesforce` two logins that others keep; `http` makes every request, and `rest`
asks an org with it.
"""
