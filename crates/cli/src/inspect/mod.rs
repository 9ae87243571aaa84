//! placeholder
use crate::Result;
#[derive(clap::Args)]
pub(crate) struct Options {}
pub(crate) fn run(_o: &Options) -> Result<()> {
    Ok(())
}
