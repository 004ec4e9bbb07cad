//! Any text as a policy file: no panic, and an accepted policy computes delays.
#![no_main]

use libfuzzer_sys::fuzz_target;
use relent::policy::PolicyFile;
use relent::random::FixedRandom;

fuzz_target!(|text: &str| {
    if let Ok(file) = PolicyFile::parse(text) {
        for name in file.names() {
            if let Ok(found) = file.get(Some(name)) {
                let _ = found.policy.waits(FixedRandom::at(0.5)).take(100).count();
            }
        }
        if let Ok(found) = file.get(None) {
            let _ = found.policy.waits(FixedRandom::at(1.0)).take(100).count();
        }
    }
});
