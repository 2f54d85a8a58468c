"""The forward in a child process, and what watches over it.

`child` is the process, the command `embed executor`; `supervisor` is the engine that starts it, asks it, and replaces
it when it hangs or dies; `protocol` is what they say to each other. docs/executor.md describes it for other programs.
"""
