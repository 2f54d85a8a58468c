"""The subcommands of `embed`, a module each: USAGE, add_options(parser) and run(options, operands) -> exit code."""
