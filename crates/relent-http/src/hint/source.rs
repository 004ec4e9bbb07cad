//! The sources of hints that the code distinguishes. A header of [`ADVICE`](super::ADVICE) or
//! [`MILLISECONDS`](super::MILLISECONDS) has its name as source.

use relent_core::HintSource;

pub(crate) const GRPC_PUSHBACK: HintSource = HintSource::header("grpc-retry-pushback-ms");
pub(crate) const GRPC_RETRY_INFO: HintSource = HintSource::header("grpc-status-details-bin");
pub(crate) const RETRY_AFTER: HintSource = HintSource::header("retry-after");
pub(crate) const RATE_LIMIT: HintSource = HintSource::header("ratelimit");
pub(crate) const X_RATE_LIMIT_RESET: HintSource = HintSource::header("x-ratelimit-reset");
pub(crate) const RELENT_MARK: HintSource = HintSource::header("relent-mark");
pub(crate) const RELENT_TICKET: HintSource = HintSource::header("relent-ticket");
