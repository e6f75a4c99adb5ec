"""Shows and replaces the settings of a tenant."""

from typing import Annotated, Any

import typer

from bufferctl.options import Ctx, JsonText, read_json

app = typer.Typer(help="Show and replace what the responder does for a tenant.")
settings = typer.Typer(help="Show and replace settings.")
app.add_typer(settings, name="settings")
Tenant = Annotated[str, typer.Argument(help="the tenant, which is the first part of its conversations' ids")]


@settings.command()
def get(ctx: Ctx, tenant: Tenant) -> Any:
    """Show the settings of a tenant."""
    result = ctx.obj.find().ask_responder("tenant.settings.get", tenant=tenant)
    return result if result["settings"] else (result, f"{tenant} has no settings of its own.")


@settings.command("set")
def replace(ctx: Ctx, tenant: Tenant, settings: JsonText) -> Any:
    """Replace the settings of a tenant: projectStatus, allowedChannels, instructions, model."""
    parsed = read_json(settings, what="settings")
    return ctx.obj.find().ask_responder("tenant.settings.set", tenant=tenant, settings=parsed)
