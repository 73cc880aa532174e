"""One row times a matrix on GPUs: bound by reading the matrix once.

gemv_rows for a matrix contiguous along k (weights [N, K]), gemv_columns for one contiguous along n.
"""

from __future__ import annotations

from .kernel import Profile
from .matmul_wgsl import Form, Stores, load, mac, matrix_place, module

SIZE = 256


def gemv_rows(f: Form, profile: Profile) -> str:
    """A row vector times a matrix whose columns are contiguous along k ('k4' both): 32 lanes a result.

    Grid: (ceil(N / (256 / lanes)), 1, matrices).
    """
    lanes = lanes_a_row(profile)
    value, shuffle = f.types.value, profile.subgroups and profile.subgroup_size >= lanes_a_row(profile)
    x, y = load("a[a_at + q]", f.types.a, value, True), load("b[b_row + q]", f.types.b, value, True)
    dot = "dot(x, y)" if value == "f32" else "x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w"
    ahead = [f"+ q + {u * lanes}u" for u in range(4)]
    four = " ".join(f"{{ let x = {x.replace('+ q', q)}; let y = {y.replace('+ q', q)}; s{u} += {dot}; }}" for u, q in enumerate(ahead))
    body = [] if shuffle else [f"var<workgroup> part: array<{value}, {SIZE}>;"]
    body += [
        f"@compute @workgroup_size({SIZE}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32) {{",
        f"let lane = tid % {lanes}u; let c = w.x * {SIZE // lanes}u + tid / {lanes}u;",
        *matrix_place("w.z"),
        "let b_row = b_at + min(c, p.n - 1u) * p.b_free; let quads = p.k / 4u;",
        " ".join(f"var s{u} = {value}();" for u in range(4)),
        f"var q = lane; for (; q + {3 * lanes}u < quads; q += {4 * lanes}u) {{ {four} }}",
        f"for (; q < quads; q += {lanes}u) {{ let x = {x}; let y = {y}; s0 += {dot}; }}",
        "var s = (s0 + s1) + (s2 + s3);",
    ]
    half = lanes // 2
    if not shuffle:
        body.append("part[tid] = s;")
    while half:
        if shuffle:
            body.append(f"s += subgroupShuffleXor(s, {half}u);")
        else:
            body.append(f"workgroupBarrier(); if (lane < {half}u) {{ s += part[tid + {half}u]; part[tid] = s; }}")
        half //= 2
    stores = Stores(f)
    store = f"{' '.join(stores.begin())} {stores.line('0u')}{stores.column('c', inside=True)}{stores.put(['s'], '0u', 'c', single=True)}"
    body.append(f"if (lane == 0u && c < p.n) {{ {store} }} }}")
    return module(profile, f, body, subgroups=shuffle)


def lanes_a_row(profile: Profile) -> int:
    """Lanes that share a result of gemv_rows: a subgroup where its size is known, else they meet in workgroup memory."""
    return min(32, profile.subgroup_size) if profile.subgroups and profile.subgroup_size in (4, 8, 16, 32, 64) else 32


def gemv_columns(f: Form, across: int, profile: Profile) -> str:
    """A row vector times a matrix that is contiguous along n ('f4'): `across` invocations of 4 columns each, the others share K.

    Grid: (ceil(N / (4 * across)), 1, matrices). The vector is read element by element ('k1').
    """
    value, size = f.types.value, SIZE
    teams = size // across
    x, y = load("a[a_at + k * p.a_k]", f.types.a, value), load("b[b_col + k * p.b_k]", f.types.b, value, True)
    ahead = [f"(k + {u * teams}u) *" for u in range(4)]
    vectors = [f"vec4<{value}>({x.replace('k *', k)})" for k in ahead]
    four = " ".join(f"s{u} = {mac(value, vectors[u], y.replace('k *', k), f's{u}')};" for u, k in enumerate(ahead))
    body = [
        f"var<workgroup> part: array<vec4<{value}>, {size}>;",
        f"@compute @workgroup_size({size}) fn main(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) tid: u32) {{",
        f"let quad = w.x * {across}u + tid % {across}u; let team = tid / {across}u;",
        *matrix_place("w.z"),
        "let b_col = b_at + min(quad, p.n / 4u - 1u);",
        " ".join(f"var s{u} = vec4<{value}>();" for u in range(4)),
        f"var k = team; for (; k + {3 * teams}u < p.k; k += {4 * teams}u) {{ {four} }}",
        f"for (; k < p.k; k += {teams}u) {{ s0 = {mac(value, f'vec4<{value}>({x})', y, 's0')}; }}",
        "var s = (s0 + s1) + (s2 + s3); part[tid] = s;",
    ]
    half = teams // 2
    while half:
        body.append(f"workgroupBarrier(); if (team < {half}u) {{ s += part[tid + {half * across}u]; part[tid] = s; }}")
        half //= 2
    stores = Stores(f)
    store = f"{' '.join(stores.begin())} {stores.line('0u')}{stores.quad('s', '(quad * 4u)')}"
    body.append(f"if (team == 0u && quad < p.n / 4u) {{ {store} }} }}")
    return module(profile, f, body)
