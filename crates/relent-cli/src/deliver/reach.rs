//! Which receivers are called.

use std::path::PathBuf;

use clap::Args;
use relent_outbox::guard::{AddressGuard, Network};
use relent_outbox::sender::{Sender, SenderConfig, certificates};
use rustls::pki_types::CertificateDer;

use crate::quit::Quit;

#[derive(Args, Debug)]
pub(super) struct Reach {
    /// Call receivers at these addresses, too: those of your own network
    ///
    /// Others are refused unless they are public, so that nobody who registers an endpoint reaches
    /// what only this machine can reach. May be given several times.
    #[arg(long, value_name = "CIDR")]
    allow_network: Vec<Network>,

    /// Call receivers without TLS, too: anybody on the way can read and change messages
    #[arg(long)]
    pub(super) allow_http: bool,

    /// Believe the certificates of receivers that are signed by those in this file (PEM), too
    ///
    /// For a private CA, beside the certificates of the system. May be given several times.
    #[arg(long, value_name = "FILE")]
    ca_file: Vec<PathBuf>,
}

impl Reach {
    pub(super) fn guard(&self) -> AddressGuard {
        let networks = self.allow_network.iter().copied();
        networks.fold(AddressGuard::new(), AddressGuard::allow)
    }

    pub(super) fn sender(&self) -> Result<Sender, Quit> {
        let mut config = SenderConfig::default();
        config.guard = self.guard();
        config.http = self.allow_http;
        config.authorities = authorities(&self.ca_file)?;
        Sender::new(config).map_err(|error| Quit::failed(error.to_string()))
    }
}

/// The certificates in these files.
pub(super) fn authorities(files: &[PathBuf]) -> Result<Vec<CertificateDer<'static>>, Quit> {
    let mut all = Vec::new();
    for file in files {
        let wrong = |error| Quit::usage(format!("--ca-file {}: {error}", file.display()));
        all.extend(certificates(file).map_err(wrong)?);
    }
    Ok(all)
}
