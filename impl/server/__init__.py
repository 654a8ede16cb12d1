"""The server: workspaces over HTTP and server-sent events. specs/wire.md has its calls.

    command   `cancelmark serve`          serving   sockets, signals and the order of a shutdown
    app       one table of calls, from which come the routes and the OpenAPI document
    calls     what each call does         schemas   what goes over the wire
    guard     who may call                stream    events to those who watch
"""
