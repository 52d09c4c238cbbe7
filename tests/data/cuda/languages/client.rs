// The program of client.c in Rust: what it sees of each card, through dlopen.
use std::ffi::{c_char, c_int, c_void, CString};

#[link(name = "dl")]
extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

fn call(library: *mut c_void, name: &str, a: u64, b: u64) -> i32 {
    let name = CString::new(name).unwrap();
    unsafe {
        let symbol = dlsym(library, name.as_ptr());
        if symbol.is_null() {
            return -1;
        }
        let function: extern "C" fn(u64, u64) -> i32 = std::mem::transmute(symbol);
        function(a, b)
    }
}

fn main() {
    let file = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    let library = unsafe { dlopen(file.as_ptr(), RTLD_NOW) };
    assert!(!library.is_null(), "dlopen");
    let mut cards: i32 = 0;
    call(library, "cuInit", 0, 0);
    call(library, "cuDeviceGetCount", &mut cards as *mut i32 as u64, 0);
    for card in 0..cards {
        let (mut context, mut pointer, mut available, mut total) = (0u64, 0u64, 0u64, 0u64);
        call(library, "cuDevicePrimaryCtxRetain", &mut context as *mut u64 as u64, card as u64);
        call(library, "cuCtxSetCurrent", context, 0);
        let figures = (&mut available as *mut u64 as u64, &mut total as *mut u64 as u64);
        call(library, "cuMemGetInfo_v2", figures.0, figures.1);
        let half = call(library, "cuMemAlloc_v2", &mut pointer as *mut u64 as u64, total / 2);
        let all = call(library, "cuMemAlloc_v2", &mut pointer as *mut u64 as u64, total);
        println!("{} {} {} {}", card, total, half, all);
    }
}
