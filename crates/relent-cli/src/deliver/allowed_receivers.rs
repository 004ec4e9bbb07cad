//! The options that limit which receivers are called.

use std::path::PathBuf;

use clap::Args;
use relent_outbox::guard::{AddressGuard, Network};
use relent_outbox::sender::{Sender, SenderConfig, certificates};
use rustls::pki_types::CertificateDer;

use crate::exit_status::ExitError;

#[derive(Args, Debug)]
pub(super) struct ReceiverOptions {
    /// Also call receivers at these addresses, such as your own network
    ///
    /// Other addresses are refused unless they are public, so that an endpoint cannot be used to reach
    /// internal services. May be given several times.
    #[arg(long, value_name = "CIDR")]
    allow_network: Vec<Network>,

    /// Also call receivers without TLS: others on the network can read and change messages
    #[arg(long)]
    pub(super) allow_http: bool,

    /// Additional trusted CA certificates for receivers (PEM)
    ///
    /// For a private CA, in addition to those of the system. May be given several times.
    #[arg(long, value_name = "FILE")]
    ca_file: Vec<PathBuf>,
}

impl ReceiverOptions {
    pub(super) fn guard(&self) -> AddressGuard {
        let networks = self.allow_network.iter().copied();
        networks.fold(AddressGuard::new(), AddressGuard::allow)
    }

    pub(super) fn sender(&self) -> Result<Sender, ExitError> {
        let mut config = SenderConfig::default();
        config.guard = self.guard();
        config.http = self.allow_http;
        config.authorities = authorities(&self.ca_file)?;
        Sender::new(config).map_err(|error| ExitError::failed(error.to_string()))
    }
}

/// Reads the certificates in these files.
pub(super) fn authorities(files: &[PathBuf]) -> Result<Vec<CertificateDer<'static>>, ExitError> {
    let mut all = Vec::new();
    for file in files {
        let wrong = |error| ExitError::usage(format!("--ca-file {}: {error}", file.display()));
        all.extend(certificates(file).map_err(wrong)?);
    }
    Ok(all)
}
