//! Any bytes from NATS, as a relay or a deliverer of the outbox is sent them: no panic, and what is taken can be judged and
//! said again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|message: &[u8]| relent_outbox::nats::any_bytes(message));
