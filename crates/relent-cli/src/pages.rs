//! Shell completions and manual pages, generated from the definition of the command line.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::console::print;
use crate::exit_status::ExitError;

/// Prints the completions for a shell.
///
/// # Errors
/// They cannot be written.
pub(crate) fn completions(mut command: Command, shell: Shell) -> Result<(), ExitError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "relent", &mut script);
    print(&String::from_utf8_lossy(&script)).map_err(ExitError::failed)
}

/// Prints the manual page, or writes the pages of all subcommands into `folder`.
///
/// # Errors
/// They cannot be written.
pub(crate) fn man(command: Command, folder: Option<&Path>) -> Result<(), ExitError> {
    match folder {
        Some(folder) => clap_mangen::generate_to(command, folder).map_err(|error| {
            let folder = folder.display();
            ExitError::failed(format!("cannot write manual pages into {folder}: {error}"))
        }),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(|error| ExitError::failed(error.to_string()))?;
            print(&String::from_utf8_lossy(&page)).map_err(ExitError::failed)
        }
    }
}
