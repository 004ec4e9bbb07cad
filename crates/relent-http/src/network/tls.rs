//! Detects errors of rustls about the certificates of either side.

use rustls::AlertDescription;

pub(super) fn is_certificate(error: &rustls::Error) -> bool {
    use rustls::Error::{
        AlertReceived, InvalidCertRevocationList, InvalidCertificate, NoCertificatesPresented,
        UnsupportedNameType,
    };
    match error {
        InvalidCertificate(_)
        | InvalidCertRevocationList(_)
        | NoCertificatesPresented
        | UnsupportedNameType => true,
        AlertReceived(alert) => matches!(
            alert,
            AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied
                | AlertDescription::CertificateRequired
        ),
        _ => false,
    }
}
