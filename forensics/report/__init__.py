"""Renderers of a finished analysis: page, ticket, terminal. Pure functions of `view.Report`."""
