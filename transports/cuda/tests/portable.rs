//! Portable code (PTX) on the fake device: every instruction that kernels here have been compiled
//! to, against what NVIDIA's manual (PTX ISA) says of it.

use std::fmt::Write;

use brigade_cuda::{Arg, Context, Cuda, DeviceMemory, Launch, Module, Stream};
use brigade_cuda_fake::has_device;

const NAN: u64 = 0x7fc0_0000;
const INFINITY: u64 = 0x7f80_0000;
/// What devices make of every NaN.
const ONE_NAN: u64 = 0x7fff_ffff;
const PLUS: fn(f32) -> u64 = |value| u64::from(value.to_bits());
const WIDE: fn(f64) -> u64 = f64::to_bits;

/// An instruction, with %a, %b and %c for its inputs and %d for its result, whose bits in registers
/// its last words say; what they are; and what comes of it, in as many bits as there are.
type Case = (&'static str, [u64; 3], u64);

fn whole_numbers() -> Vec<Case> {
    let minus = |number: i64| number as u64;
    vec![
        ("add.s32 %d32, %a32, %b32", [u64::from(u32::MAX), 2, 0], 1),
        ("add.s16 %d16, %a16, %b16", [0x7fff, 1, 0], 0x8000),
        ("add.s64 %d64, %a64, -3", [1, 0, 0], minus(-2)),
        ("sub.s32 %d32, %a32, %b32", [1, 3, 0], 0xffff_fffe),
        ("mul.lo.s32 %d32, %a32, %b32", [0x1_0001, 0x1_0001, 0], 0x2_0001),
        ("mul.lo.s16 %d16, %a16, %b16", [0x101, 0x101, 0], 0x201),
        ("mul.hi.s16 %d16, %a16, %b16", [0xffff, 2, 0], 0xffff),
        ("mul.hi.u32 %d32, %a32, %b32", [0xffff_ffff, 0xffff_ffff, 0], 0xffff_fffe),
        ("mul.hi.s32 %d32, %a32, %b32", [0xffff_ffff, 0xffff_ffff, 0], 0),
        ("mul.hi.u64 %d64, %a64, %b64", [u64::MAX, u64::MAX, 0], u64::MAX - 1),
        ("mul.hi.s64 %d64, %a64, %b64", [u64::MAX, 2, 0], u64::MAX),
        ("mul.wide.u32 %d64, %a32, %b32", [0xffff_ffff, 2, 0], 0x1_ffff_fffe),
        ("mul.wide.s32 %d64, %a32, %b32", [0xffff_ffff, 2, 0], minus(-2)),
        ("mad.lo.s32 %d32, %a32, %b32, %c32", [3, 5, 7], 22),
        ("mad.lo.s64 %d64, %a64, %b64, %c64", [3, minus(-5), 7], minus(-8)),
        ("div.s32 %d32, %a32, %b32", [0xffff_fff9, 2, 0], 0xffff_fffd),
        ("div.u32 %d32, %a32, %b32", [0xffff_fff9, 2, 0], 0x7fff_fffc),
        ("rem.u64 %d64, %a64, %b64", [17, 5, 0], 2),
        ("div.s64 %d64, %a64, %b64", [minus(-17), 5, 0], minus(-3)),
        ("min.s16 %d16, %a16, %b16", [0xffff, 1, 0], 0xffff),
        ("min.u16 %d16, %a16, %b16", [0xffff, 1, 0], 1),
        ("max.s64 %d64, %a64, %b64", [minus(-1), 1, 0], 1),
        ("max.u32 %d32, %a32, %b32", [0xffff_ffff, 1, 0], 0xffff_ffff),
        ("neg.s32 %d32, %a32", [5, 0, 0], 0xffff_fffb),
        ("and.b64 %d64, %a64, %b64", [0xff00, 0xff0, 0], 0xf00),
        ("or.b16 %d16, %a16, %b16", [0xf000, 0xf, 0], 0xf00f),
        ("xor.b32 %d32, %a32, -1", [0xf, 0, 0], 0xffff_fff0),
        ("not.b32 %d32, %a32", [0xf, 0, 0], 0xffff_fff0),
        ("shl.b32 %d32, %a32, %b32", [3, 31, 0], 0x8000_0000),
        ("shl.b64 %d64, %a64, %b32", [1, 64, 0], 0),
        ("shr.u32 %d32, %a32, 32", [u64::MAX, 0, 0], 0),
        ("shr.s32 %d32, %a32, 40", [0x8000_0000, 0, 0], 0xffff_ffff),
        ("shr.s16 %d16, %a16, 3", [0x8000, 0, 0], 0xf000),
        ("shr.s64 %d64, %a64, 4", [minus(-32), 0, 0], minus(-2)),
        ("bfe.s64 %d64, %a64, 8, 8", [0x8000, 0, 0], minus(-128)),
        ("bfe.u32 %d32, %a32, 4, 8", [0xabcd, 0, 0], 0xbc),
        ("bfi.b64 %d64, %a64, %b64, 32, 32", [0xffff_0000_0001, 7, 0], 0x1_0000_0007),
        ("prmt.b32 %d32, %a32, %b32, 0x7a40", [0x44c2_8011, 0x8877_6655, 0], 0x88ff_5511),
        ("selp.b32 %d32, %a32, %b32, %no", [1, 2, 0], 2),
        ("selp.b64 %d64, 5, %b64, %yes", [1, 2, 0], 5),
        ("cvt.u64.u32 %d64, %a32", [0xffff_ffff, 0, 0], 0xffff_ffff),
        ("cvt.s64.s32 %d64, %a32", [0xffff_ffff, 0, 0], u64::MAX),
        ("cvt.s16.s8 %d16, %a16", [0x80, 0, 0], 0xff80),
        ("cvt.s8.s64 %d16, %a64", [0x1ff, 0, 0], 0xffff),
        ("cvt.u16.u64 %d16, %a64", [0x1_2345, 0, 0], 0x2345),
        ("mov.b64 %d64, {%a32, %b32}", [1, 2, 0], 0x2_0000_0001),
        ("mov.b64 {%x32, %d32}, %a64", [0x2_0000_0001, 0, 0], 2),
        ("mov.b32 {%d16, %x16}, %a32", [0x2_0001, 0, 0], 1),
        // Shared memory, by the half of an address that is enough for it.
        (
            "mov.u32 %x32, room;\nst.shared.u32 [%x32+4], %a32;\nld.shared.u32 %d32, [room+4]",
            [9, 0, 0],
            9,
        ),
        (
            "mov.u32 %x32, room;\nst.shared.u32 [room], 8;\ncvt.u64.u32 %x64, %x32;\n\
             cvta.shared.u64 %x64, %x64;\nld.u32 %d32, [%x64]",
            [0; 3],
            8,
        ),
        ("@%yes mov.u32 %d32, 7", [0, 0, 0], 7),
        ("@!%yes mov.u32 %d32, 7", [0, 0, 0], 0),
    ]
}

fn floats() -> Vec<Case> {
    let (one, two, three) = (PLUS(1.0), PLUS(2.0), PLUS(3.0));
    let small = 1;
    vec![
        ("add.rn.f32 %d32, %a32, %b32", [one, PLUS(2_f32.powi(-24)), 0], one),
        ("sub.f32 %d32, %a32, %b32", [INFINITY, INFINITY, 0], ONE_NAN),
        ("mul.rn.f32 %d32, %a32, %b32", [small, PLUS(0.5), 0], 0),
        ("div.rn.f32 %d32, %a32, %b32", [one, three, 0], PLUS(1.0 / 3.0)),
        ("fma.rn.f32 %d32, %a32, %b32, %c32", [three, three, two], PLUS(11.0)),
        // 1 - 2^-30 lies between two floats.
        ("fma.rm.f32 %d32, %a32, %b32, %c32", [PLUS(-(2_f32.powi(-30))), one, one], 0x3f7f_ffff),
        ("fma.rn.f32 %d32, %a32, %b32, %c32", [PLUS(-(2_f32.powi(-30))), one, one], one),
        ("rcp.rn.f32 %d32, %a32", [three, 0, 0], PLUS(1.0 / 3.0)),
        ("sqrt.rn.f32 %d32, %a32", [two, 0, 0], PLUS(2_f32.sqrt())),
        ("ex2.approx.ftz.f32 %d32, %a32", [three, 0, 0], PLUS(8.0)),
        ("ex2.approx.ftz.f32 %d32, %a32", [PLUS(-140.0), 0, 0], 0),
        ("rcp.approx.ftz.f32 %d32, %a32", [two, 0, 0], PLUS(0.5)),
        ("min.f32 %d32, %a32, %b32", [NAN, two, 0], two),
        ("max.f32 %d32, %a32, %b32", [NAN, NAN, 0], ONE_NAN),
        ("neg.f32 %d32, %a32", [0, 0, 0], 0x8000_0000),
        ("abs.f32 %d32, %a32", [PLUS(-2.0), 0, 0], two),
        ("copysign.f32 %d32, %a32, %b32", [PLUS(-1.0), two, 0], PLUS(-2.0)),
        ("selp.f32 %d32, %a32, 0f40000000, %no", [one, 0, 0], two),
        ("add.rn.f64 %d64, %a64, %b64", [WIDE(0.1), WIDE(0.2), 0], WIDE(0.1 + 0.2)),
        ("div.rn.f64 %d64, %a64, 0d4008000000000000", [WIDE(1.0), 0, 0], WIDE(1.0 / 3.0)),
        ("cvt.f32.f16 %d32, %a16", [0x3c01, 0, 0], PLUS(1.000_976_6)),
        ("cvt.rn.f16.f32 %d16, %a32", [PLUS(65_520.0), 0, 0], 0x7c00),
        ("cvt.rn.f16.f32 %d16, %a32", [NAN, 0, 0], 0x7fff),
        ("cvt.rn.bf16.f32 %d16, %a32", [0x3f80_8000, 0, 0], 0x3f80),
        ("cvt.rn.bf16.f32 %d16, %a32", [0x3f81_8000, 0, 0], 0x3f82),
        ("cvt.rn.f32.f64 %d32, %a64", [WIDE(0.1), 0, 0], PLUS(0.1)),
        ("cvt.f64.f32 %d64, %a32", [PLUS(0.1), 0, 0], WIDE(f64::from(0.1_f32))),
        ("cvt.rn.f32.u32 %d32, %a32", [u64::from(u32::MAX), 0, 0], PLUS(4_294_967_296.0)),
        ("cvt.rn.f32.s32 %d32, %a32", [u64::from(u32::MAX), 0, 0], PLUS(-1.0)),
        ("cvt.rzi.s64.f64 %d64, %a64", [WIDE(-2.9), 0, 0], (-2_i64) as u64),
        ("cvt.rzi.s64.f64 %d64, %a64", [WIDE(1e300), 0, 0], i64::MAX as u64),
        ("cvt.rzi.s64.f64 %d64, %a64", [WIDE(f64::NAN), 0, 0], 1 << 63),
        ("cvt.rzi.s32.f32 %d32, %a32", [NAN, 0, 0], 0),
        ("min.f32 %d32, %a32, %b32", [0, 0x8000_0000, 0], 0x8000_0000),
        ("max.f32 %d32, %a32, %b32", [0x8000_0000, 0, 0], 0),
        ("cvt.sat.f32.f32 %d32, %a32", [two, 0, 0], one),
        ("cvt.sat.f32.f32 %d32, %a32", [NAN, 0, 0], 0),
    ]
}

fn comparisons() -> Vec<Case> {
    let [one, two] = [PLUS(1.0), PLUS(2.0)];
    vec![
        ("setp.lt.s32 %dp, %a32, %b32", [0xffff_ffff, 1, 0], 1),
        ("setp.lt.u32 %dp, %a32, %b32", [0xffff_ffff, 1, 0], 0),
        ("setp.ge.u64 %dp, %a64, %b64", [2, 2, 0], 1),
        ("setp.gt.s16 %dp, %a16, -1", [0, 0, 0], 1),
        ("setp.ne.s16 %dp, %a16, 0", [0x1_0000, 0, 0], 0),
        ("setp.eq.b64 %dp, %a64, %b64", [3, 3, 0], 1),
        ("setp.le.u64 %dp, %a64, %b64", [3, 2, 0], 0),
        ("setp.lt.f32 %dp, %a32, %b32", [one, two, 0], 1),
        ("setp.lt.f32 %dp, %a32, %b32", [one, NAN, 0], 0),
        ("setp.neu.f32 %dp, %a32, %b32", [one, NAN, 0], 1),
        ("setp.nan.f32 %dp, %a32, %b32", [one, NAN, 0], 1),
        ("setp.num.f32 %dp, %a32, %b32", [one, two, 0], 1),
        ("setp.nan.f64 %dp, %a64, %b64", [WIDE(1.0), WIDE(2.0), 0], 0),
        ("and.pred %dp, %yes, %no", [0; 3], 0),
        ("or.pred %dp, %yes, %no", [0; 3], 1),
        ("xor.pred %dp, %yes, %yes", [0; 3], 0),
        ("not.pred %dp, %no", [0; 3], 1),
        ("bar.red.or.pred %dp, 0, !%yes", [0; 3], 0),
        ("vote.sync.any.pred %dp, %yes, -1", [0; 3], 1),
    ]
}

/// A kernel of one thread that carries out each of them, from `inputs` to `outputs`.
fn kernel(cases: &[Case]) -> String {
    let mut text = String::from(
        "// Portable code begins with a comment.\n.version 8.0\n.target sm_90\n.address_size 64\n\
         .visible .entry carry_out(\n.param .u64 .ptr .align 8 carry_out_param_0,\n\
         .param .u64 carry_out_param_1\n)\n.maxntid 512\n{\n.reg .pred %yes;\n.reg .pred %no;\n\
         .reg .b64 %rd<3>;\n.shared .align 4 .b8 room[8];\n\
         ld.param.u64 %rd1, [carry_out_param_0];\n\
         ld.param.u64 %rd2, [carry_out_param_1];\ncvta.to.global.u64 %rd0, %rd1;\n\
         setp.eq.s32 %yes, 1, 1;\nsetp.ne.s32 %no, 1, 1;\n",
    );
    for (at, (instruction, _, _)) in cases.iter().enumerate() {
        text.push_str("{\n.reg .pred %dp;\n");
        for bits in [16, 32, 64] {
            for name in ["a", "b", "c", "d", "x"] {
                let _ = writeln!(text, ".reg .b{bits} %{name}{bits};");
            }
            for (place, name) in ["a", "b", "c"].iter().enumerate() {
                let place = 8 * (3 * at + place);
                let _ = writeln!(text, "ld.global.b{bits} %{name}{bits}, [%rd0+{place}];");
            }
            let _ = writeln!(text, "mov.b{bits} %d{bits}, 0;");
        }
        let _ = writeln!(text, "{instruction};");
        let bits = ["%d16", "%d32", "%d64"].into_iter().find(|name| instruction.contains(name));
        let _ = match bits {
            Some(name) => writeln!(text, "st.global.b{} [%rd2+{}], {name};", &name[2..], 8 * at),
            None => writeln!(text, "selp.b32 %x32, 1, 0, %dp;\nst.b32 [%rd2+{}], %x32;", 8 * at),
        };
        text.push_str("}\n");
    }
    text.push_str("ret;\n}\n");
    text
}

fn context() -> Option<Context> {
    if !has_device() || brigade_cuda_fake::is_off() {
        return None;
    }
    let device = Cuda::load().expect("the fake driver").device(0).expect("a device");
    Some(Context::new(&device).expect("a context"))
}

#[test]
fn every_instruction_does_what_the_manual_says() {
    let Some(context) = context() else { return };
    let cases = [whole_numbers(), floats(), comparisons()].concat();
    let stream = Stream::new(&context).expect("a stream");
    // SAFETY: the text is this test's own, and stays within its memory.
    let module = unsafe { Module::load(&context, kernel(&cases).as_bytes()) }.expect("a module");
    let function = module.function("carry_out").expect("the kernel");
    let inputs: Vec<u8> = cases.iter().flat_map(|case| case.1).flat_map(u64::to_le_bytes).collect();
    let mut input = DeviceMemory::new(&context, inputs.len()).expect("memory");
    let mut output = DeviceMemory::new(&context, 8 * cases.len()).expect("memory");
    input.write(&stream, 0, &inputs).expect("a copy");
    output.write(&stream, 0, &vec![0; 8 * cases.len()]).expect("a copy");
    let (from, to) = (input.address(), output.address());
    // SAFETY: the kernel takes two addresses of this memory.
    unsafe { function.launch(&stream, &Launch::linear(1, 1), &[Arg::of(&from), Arg::of(&to)]) }
        .expect("a launch");
    let mut outputs = vec![0; 8 * cases.len()];
    output.read(&stream, 0, &mut outputs).expect("a copy");
    for ((instruction, inputs, wanted), bytes) in cases.iter().zip(outputs.chunks(8)) {
        let result = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        assert_eq!(result, *wanted, "{instruction} of {inputs:x?} is {result:#x}, not {wanted:#x}");
    }
}

/// As a driver does: the kernel says how many its registers are enough for.
#[test]
fn more_threads_than_a_kernel_allows_are_refused() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).expect("a stream");
    // SAFETY: the text is this test's own, and touches no memory.
    let module = unsafe { Module::load(&context, kernel(&[]).as_bytes()) }.expect("a module");
    let function = module.function("carry_out").expect("the kernel");
    let nothing = 0_u64;
    let arguments = [Arg::of(&nothing), Arg::of(&nothing)];
    for (threads, is_allowed) in [(512, true), (513, false)] {
        // SAFETY: the kernel takes two addresses, and looks at neither.
        let launched = unsafe { function.launch(&stream, &Launch::linear(1, threads), &arguments) };
        assert_eq!(launched.is_ok(), is_allowed, "{threads} threads: {launched:?}");
    }
    stream.synchronize().expect("the end");
}

#[test]
fn what_is_not_understood_is_refused() {
    let Some(context) = context() else { return };
    for instruction in ["frobnicate.b32 %d32, %a32", "ld.global.b32 %d32, %a32", "bar.sync 3"] {
        let text = kernel(&[(instruction, [0; 3], 0)]);
        // SAFETY: it is not even loaded.
        let loaded = unsafe { Module::load(&context, text.as_bytes()) };
        assert!(loaded.is_err(), "{instruction}");
    }
}
