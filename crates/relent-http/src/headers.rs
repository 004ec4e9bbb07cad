//! Names of all headers that Relent reads or sends. Its own begin with `relent-`; `docs/headers.md` describes
//! which side sends and which side reads them.

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

/// Response: the amount left of each quota and the time until it resets
/// (draft-ietf-httpapi-ratelimit-headers).
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Response: the quotas that a server allots (draft-ietf-httpapi-ratelimit-headers).
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Response: the time at which a quota is full again. Vendors disagree about the unit, so it is read only as
/// [`XRateLimitReset`](crate::rate_limit::XRateLimitReset) declares.
pub const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Response: the amount left of the quota that `X-RateLimit-Reset` describes.
pub const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

/// Response: `true` or `false`, do retry or do not (OpenAI, Anthropic).
pub const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Response: `true` or `false`, do retry or do not (Stripe).
pub const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// Response: a delay in milliseconds; anything else means "do not retry" (gRFC A6).
pub const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Response: the gRPC status, in the trailers, or in the headers of a response that has no body.
pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Response: the server's message for its `grpc-status`, percent-encoded.
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Response: a `google.rpc.Status` with details such as `RetryInfo`, in base64.
pub const GRPC_STATUS_DETAILS_BIN: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// Request: the number of earlier attempts; absent on the first (gRFC A6).
pub const GRPC_PREVIOUS_RPC_ATTEMPTS: HeaderName =
    HeaderName::from_static("grpc-previous-rpc-attempts");

/// Request: the time limit of a gRPC call, such as `5S` or `300m`.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Request: the attempt number, `1*DIGIT`; absent on the first. A client with `cross_layer` sends it from
/// attempt 2 on ([`CallerContext`](crate::CallerContext) reads it).
///
/// It is valid for one hop: a client replaces or removes the field of a forwarded request.
pub const RELENT_ATTEMPT: HeaderName = HeaderName::from_static("relent-attempt");

/// Request: the time left until the deadline of the whole call, in milliseconds rounded down,
/// `1*DIGIT`. The time that the request travels is not included.
///
/// On a request that is about to be sent it is the deadline of all its attempts together, unless the
/// policy has a nearer one.
pub const RELENT_DEADLINE_MS: HeaderName = HeaderName::from_static("relent-deadline-ms");

/// Request: how many of this client's calls in the last two minutes took 1, 2, …, 7, and 8 or more
/// attempts; [`histogram`](crate::histogram) has its grammar. It is valid for one hop, as
/// [`RELENT_ATTEMPT`] is.
pub const RELENT_HISTOGRAM: HeaderName = HeaderName::from_static("relent-histogram");

/// Request: its criticality, one of `CRITICAL_PLUS`, `CRITICAL`, `SHEDDABLE_PLUS` and `SHEDDABLE`
/// ([`Criticality`](relent_core::Criticality)), in any capitals. It is valid for the whole chain: services pass it on.
pub const RELENT_CRITICALITY: HeaderName = HeaderName::from_static("relent-criticality");

/// Response: no-retry marker, a list of `exhausted` (retries were exhausted below) and
/// `overloaded`, in any capitals. See [`Mark`](crate::Mark).
pub const RELENT_MARK: HeaderName = HeaderName::from_static("relent-mark");

/// Response: `true` if the delay of the response is reserved for this caller (a ticket), in
/// any capitals. Otherwise the client assumes that many callers received the same delay.
pub const RELENT_TICKET: HeaderName = HeaderName::from_static("relent-ticket");
