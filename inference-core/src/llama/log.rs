//! Captures llama.cpp's log: the first error of a load becomes part of its error message.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, Once, PoisonError};

use llama_cpp_sys_2 as sys;

static INSTALL: Once = Once::new();
static FIRST_ERROR: Mutex<String> = Mutex::new(String::new());
/// Maximum length of a kept message, in characters.
const MESSAGE_BYTES_MAX: usize = 512;

/// Redirects the process-wide log of llama.cpp and ggml.
pub(super) fn install() {
    INSTALL.call_once(|| {
        // SAFETY: the callback is a static function without user data.
        unsafe { sys::llama_log_set(Some(receive), std::ptr::null_mut()) };
    });
}

/// The first error logged since the previous call.
pub(super) fn take_first_error() -> String {
    let mut first = FIRST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    let text = std::mem::take(&mut *first);
    if text.is_empty() { "it gave no reason".into() } else { text }
}

extern "C" fn receive(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if level != sys::GGML_LOG_LEVEL_ERROR || text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a zero-terminated string that lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text: String = text.trim().chars().take(MESSAGE_BYTES_MAX).collect();
    let mut first = FIRST_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    // Later errors are less specific; the last one only says that the model was not loaded.
    if first.is_empty() {
        *first = text;
    }
}
