//! Every header name that Relent reads or sends, in one place. Those of its own begin with
//! `relent-`; who sends and who understands them is told in `docs/headers.md`.

use http::HeaderName;

pub use http::header::{AGE, CONTENT_TYPE, DATE, IF_MATCH, IF_NONE_MATCH, RETRY_AFTER};

/// Request: the name under which the server drops duplicates of this request
/// (draft-ietf-httpapi-idempotency-key-header). Makes any method repeatable.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Response: a delay in milliseconds (Azure, OpenAI, Anthropic). Outranks `Retry-After`.
pub const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Response: a delay in milliseconds (Azure).
pub const X_MS_RETRY_AFTER_MS: HeaderName = HeaderName::from_static("x-ms-retry-after-ms");

/// Response: a delay in milliseconds (AWS, SDK retries 2.1).
pub const X_AMZ_RETRY_AFTER: HeaderName = HeaderName::from_static("x-amz-retry-after");

/// Response: Envoy's rate limit refused the request, whatever the status.
pub const X_ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");

/// Response: what is left of each quota and until when
/// (draft-ietf-httpapi-ratelimit-headers).
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Response: the quotas that a server allots (draft-ietf-httpapi-ratelimit-headers).
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Response: when a quota is full again. Vendors disagree about the unit, so it is read only as
/// [`XRateLimitReset`](crate::rate_limit::XRateLimitReset) declares.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Response: what is left of the quota that `X-RateLimit-Reset` speaks of.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

/// Response: `true` or `false`, do retry or do not (OpenAI, Anthropic).
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Response: `true` or `false`, do retry or do not (Stripe).
pub const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// Response: a delay in milliseconds; anything else means "do not retry" (gRFC A6).
pub const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Response: the gRPC status, in the trailers, or in the headers of a response that has no body.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Response: what the server says about its `grpc-status`, percent-encoded.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Response: a `google.rpc.Status` with details such as `RetryInfo`, in base64.
pub const GRPC_STATUS_DETAILS_BIN: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Request: how many attempts went before this one; absent on the first (gRFC A6).
pub const GRPC_PREVIOUS_RPC_ATTEMPTS: HeaderName =
    HeaderName::from_static("grpc-previous-rpc-attempts");

/// Request: the time that the caller gives to a gRPC call, such as `5S` or `300m`.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Request: which attempt this is, `1*DIGIT`; absent on the first. A client sends it from attempt 2
/// on if told to ([`CallerFacts`](crate::CallerFacts) reads it).
///
/// It speaks of one hop: a client replaces or removes one that a forwarded request has brought along.
pub const RELENT_ATTEMPT: HeaderName = HeaderName::from_static("relent-attempt");

/// Request: the time left until the deadline of the whole call, in milliseconds rounded down,
/// `1*DIGIT`. The time that the request is under way is not in it.
///
/// On a request that is about to be sent it is the deadline of all its attempts together, if the
/// policy has none that is nearer.
pub const RELENT_DEADLINE_MS: HeaderName = HeaderName::from_static("relent-deadline-ms");

/// Request: how many of this client's calls in the last two minutes took 1, 2, …, 7, and 8 or more
/// attempts; [`histogram`](crate::histogram) has its grammar. It speaks of one hop, as
/// [`RELENT_ATTEMPT`] does.
pub const RELENT_HISTOGRAM: HeaderName = HeaderName::from_static("relent-histogram");

/// Request: how much it matters, one of `CRITICAL_PLUS`, `CRITICAL`, `SHEDDABLE_PLUS` and `SHEDDABLE`
/// ([`Criticality`](relent_core::Criticality)), in any capitals. It speaks of the whole chain: a service hands it down.
pub const RELENT_CRITICALITY: HeaderName = HeaderName::from_static("relent-criticality");

/// Response: do not retry this, and why: a list of `exhausted` (retries were exhausted below) and
/// `overloaded`, in any capitals. See [`Mark`](crate::Mark).
pub const RELENT_MARK: HeaderName = HeaderName::from_static("relent-mark");

/// Response: `true` if the delay that the response names is reserved for this caller (a ticket), in
/// any capitals. Without it a delay is taken for one that many callers were told.
pub const RELENT_TICKET: HeaderName = HeaderName::from_static("relent-ticket");
