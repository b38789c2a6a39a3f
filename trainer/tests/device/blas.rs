//! Products by cuBLAS.

use super::world::{TOLERANCE, args, check, is_child_with, table, train};
use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
use brigade_trainer::Args;
use brigade_trainer::kernels::cuda::{BLAS_VARIABLE, Device, Matrix, Product, ProductFormat, Room};
use half::f16;
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

/// Whoever cuts a sum into parts must not round them to what comes out: of f16 they would overflow.
#[test]
fn sums_by_cublas_are_f32_all_along() {
    if !by_cublas("blas::sums_by_cublas_are_f32_all_along") {
        return;
    }
    let device = Cuda::load().unwrap().device(0).unwrap();
    let stream = Stream::new(&Context::new(&device).unwrap()).unwrap();
    let device = Device::new(&stream, ProductFormat::F16).unwrap();
    let numbers = [60_000.0, 60_000.0, -60_000.0, -59_968.0, 1.0, 1.0, 1.0, 1.0, 0.0];
    let bytes: Vec<u8> =
        numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect();
    let mut memory = DeviceMemory::new(stream.context(), 256).unwrap();
    memory.write(&stream, 0, &bytes).unwrap();
    let mut room = Room::at(memory.address());
    let all = room.take(numbers.len(), 2);
    let [a, b, out] = [(0..4, 4), (4..8, 1), (8..9, 1)]
        .map(|(range, columns)| Matrix::rows(all.part(range), columns));
    device.product(&Product::new(out, a, b, [1, 1, 4])).unwrap();
    let mut sum = [0; 2];
    memory.read(&stream, 16, &mut sum).unwrap();
    assert_eq!(f16::from_le_bytes(sum).to_f32(), 32.0);
}
