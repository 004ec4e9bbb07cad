//! Any bytes from NATS, as the outbox's dispatcher or worker receives them: no panic, and accepted messages can be
//! evaluated and formatted again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| relent_outbox_nats::any_bytes(message));
