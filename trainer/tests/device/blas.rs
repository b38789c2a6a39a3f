//! Products by cuBLAS.

use super::world::{TOLERANCE, args, check, is_child_with, table, train};
use brigade_trainer::Args;
use brigade_trainer::kernels::cuda::BLAS_VARIABLE;
use std::path::{Path, PathBuf};

/// Whether this is the process of the test with this name that has cuBLAS, or is to be believed so.
pub(super) fn by_cublas(name: &str) -> bool {
    // A real device has the real one, and the fake need not be there.
    let (variable, library) = match brigade_cuda_fake::is_off() {
        true => ("NO_FAKE_HERE", PathBuf::from("none")),
        false => (BLAS_VARIABLE, brigade_cuda_fake::library()),
    };
    is_child_with(&[(variable, &library)], name)
}

/// cuBLAS loads code at each first product of a kind, which waits for the device: so must no call
/// there that waits for the rank.
#[test]
fn products_by_cublas_have_the_losses_of_the_processor() {
    if !by_cublas("blas::products_by_cublas_have_the_losses_of_the_processor") {
        return;
    }
    let more = "--batch 64 --strategy fsdp";
    check(2, more, TOLERANCE);
    check(2, "--batch 64 --strategy ddp", TOLERANCE);
    check(2, "--strategy tp", TOLERANCE);
    check(2, "--strategy tp --offload cpu", TOLERANCE);
    check(1, "--accumulate 2 --recompute", TOLERANCE);
    check(1, "--precision bf16", 1e-2);
    check(1, "--precision f16", 2e-3);
    check(1, "--tile 4", TOLERANCE);
    let table = table(2, &Args { quiet: false, ..args(&format!("{more} --device cuda")) });
    assert!(table.contains("products by cuBLAS"), "{table}");
}

/// Whoever names it means to have it, rather than something slow.
#[test]
fn cublas_that_is_named_and_cannot_be_used_is_an_error() {
    let name = "blas::cublas_that_is_named_and_cannot_be_used_is_an_error";
    let nowhere = Path::new("/nowhere/libcublas.so.12");
    if !is_child_with(&[(BLAS_VARIABLE, nowhere)], name) {
        return;
    }
    let error = train(&args("--device cuda"), None).expect_err("there is none").to_string();
    assert!(error.contains(BLAS_VARIABLE) && error.contains("/nowhere/"), "{error}");
}
