//! Names of all headers that Relent reads or sends. Its own begin with `relent-`; `docs/headers.md` describes
//! which side sends and which side reads them.

use http::HeaderName;

pub use http::header::{AGE, CONTENT_TYPE, DATE, IF_MATCH, IF_NONE_MATCH, RETRY_AFTER};

macro_rules! headers {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: HeaderName = HeaderName::from_static($text);)*

        /// All headers of this module.
        pub static ALL: [HeaderName; 6 + [$($text),*].len()] = [
            RETRY_AFTER, DATE, AGE, CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH, $($name,)*
        ];
    };
}

headers! {
    /// Request: the name under which the server drops duplicates of this request
    /// (draft-ietf-httpapi-idempotency-key-header). Makes any method repeatable.
    IDEMPOTENCY_KEY = "idempotency-key";

    /// Response: a delay in milliseconds (Azure, OpenAI, Anthropic). Outranks `Retry-After`.
    RETRY_AFTER_MS = "retry-after-ms";

    /// Response: a delay in milliseconds (Azure).
    X_MS_RETRY_AFTER_MS = "x-ms-retry-after-ms";

    /// Response: a delay in milliseconds (AWS, SDK retries 2.1).
    X_AMZ_RETRY_AFTER = "x-amz-retry-after";

    /// Response: Envoy's rate limit refused the request, whatever the status.
    X_ENVOY_RATELIMITED = "x-envoy-ratelimited";

    /// Response: the amount left of each quota and the time until it resets
    /// (draft-ietf-httpapi-ratelimit-headers).
    RATELIMIT = "ratelimit";

    /// Response: the quotas that a server allots (draft-ietf-httpapi-ratelimit-headers).
    RATELIMIT_POLICY = "ratelimit-policy";

    /// Response: the time at which a quota is full again. Vendors disagree about the unit, so it is read only as
    /// [`XRateLimitReset`](crate::rate_limit::XRateLimitReset) declares.
    X_RATELIMIT_RESET = "x-ratelimit-reset";

    /// Response: the amount left of the quota that `X-RateLimit-Reset` describes.
    X_RATELIMIT_REMAINING = "x-ratelimit-remaining";

    /// Response: `true` or `false`, do retry or do not (OpenAI, Anthropic).
    X_SHOULD_RETRY = "x-should-retry";

    /// Response: `true` or `false`, do retry or do not (Stripe).
    STRIPE_SHOULD_RETRY = "stripe-should-retry";

    /// Response: a delay in milliseconds; anything else means "do not retry" (gRFC A6).
    GRPC_RETRY_PUSHBACK_MS = "grpc-retry-pushback-ms";

    /// Response: the gRPC status, in the trailers, or in the headers of a response that has no body.
    GRPC_STATUS = "grpc-status";

    /// Response: the server's message for its `grpc-status`, percent-encoded.
    GRPC_MESSAGE = "grpc-message";

    /// Response: a `google.rpc.Status` with details such as `RetryInfo`, in base64.
    GRPC_STATUS_DETAILS_BIN = "grpc-status-details-bin";

    /// Request: the number of earlier attempts; absent on the first (gRFC A6).
    GRPC_PREVIOUS_RPC_ATTEMPTS = "grpc-previous-rpc-attempts";

    /// Request: the time limit of a gRPC call, such as `5S` or `300m`.
    GRPC_TIMEOUT = "grpc-timeout";

    /// Request: the attempt number, `1*DIGIT`; absent on the first. A client with `cross_layer` sends it from
    /// attempt 2 on ([`CallerContext`](crate::CallerContext) reads it).
    ///
    /// It is valid for one hop: a client replaces or removes the field of a forwarded request.
    RELENT_ATTEMPT = "relent-attempt";

    /// Request: the time left until the deadline of the whole call, in milliseconds rounded down,
    /// `1*DIGIT`. The time that the request travels is not included.
    ///
    /// On a request that is about to be sent it is the deadline of all its attempts together, unless the
    /// policy has a nearer one.
    RELENT_DEADLINE_MS = "relent-deadline-ms";

    /// Request: how many of this client's calls in the last two minutes took 1, 2, …, 7, and 8 or more
    /// attempts; [`histogram`](crate::histogram) has its grammar. It is valid for one hop, as
    /// [`RELENT_ATTEMPT`] is.
    RELENT_HISTOGRAM = "relent-histogram";

    /// Request: its criticality, one of `CRITICAL_PLUS`, `CRITICAL`, `SHEDDABLE_PLUS` and `SHEDDABLE`
    /// ([`Criticality`](relent_core::Criticality)), in upper or lower case. It is valid for the whole chain: services
    /// pass it on.
    RELENT_CRITICALITY = "relent-criticality";

    /// Response: no-retry marker, a list of `exhausted` (retries were exhausted below) and
    /// `overloaded`, in upper or lower case. See [`Mark`](crate::Mark).
    RELENT_MARK = "relent-mark";

    /// Response: `request` if the failure concerns this request only. It is no failure for the circuit breaker, nor for a
    /// budget that charges failures. gRPC has no status for that; over HTTP most 4xx mean it.
    RELENT_SCOPE = "relent-scope";

    /// Response: `true` if the delay of the response is reserved for this caller (a ticket), in
    /// any capitals. Otherwise the client assumes that many callers received the same delay.
    RELENT_TICKET = "relent-ticket";
}
