"""Which of PyTorch's public names are here: a fixed list of names, each looked up when asked for.

In: the names below, by topic. Out: a status a name, and docs/support.md (`python -m meganeura support > docs/support.md`).
A name is 'yes', 'eager only' (it reads values on the host, so it cannot be compiled), 'later' (not here) or 'no' (left out
for good: complex numbers, sparse and quantized tensors, Fourier transforms, TorchScript). Does not import PyTorch.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from .errors import UnsupportedError
from .unsupported import UNSUPPORTED

STATUSES = ("yes", "eager only", "later", "no")

# What reads values on the host beside the rows that numpy computes (ops/host.py): results whose shape depends on values, and
# Python numbers.
_READS = (
    "allclose argwhere bincount binomial combinations equal is_nonzero item masked_select nonzero numpy poisson tolist unique "
    "unique_consecutive update_bn"
)
# Left out for good, beside unsupported.UNSUPPORTED.
_NEVER = (
    "coalesce cuda eig eigvals indices is_coalesced resize resize_ resize_as_ SparseAdam sparse_dim sparse_mask to_dense to_sparse values"
)
# Names that PyTorch has twice for different things: an argument that tells which one is here.
_TOLD_BY = {"torch.nn.functional.unfold": "kernel_size"}

NAMES: dict[str, str] = {
    "torch": """
        abs absolute acos acosh adaptive_avg_pool1d adaptive_max_pool1d add addbmm addcdiv addcmul addmm addmv addr adjoint
        affine_grid_generator all allclose alpha_dropout amax amin aminmax angle any arange arccos arccosh arcsin arcsinh arctan
        arctan2 arctanh argmax argmin argsort argwhere as_strided as_strided_scatter as_tensor asarray asin asinh atan atan2 atanh
        atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm bartlett_window batch_norm bernoulli binary_cross_entropy_with_logits
        bincount binomial bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window
        block_diag bmm broadcast_shapes broadcast_tensors broadcast_to bucketize can_cast cartesian_prod cat cdist ceil celu
        chain_matmul channel_shuffle cholesky cholesky_inverse cholesky_solve chunk clamp clamp_max clamp_min clip clone
        column_stack combinations compile complex concat concatenate conj conj_physical constant_pad_nd conv1d conv2d conv3d
        conv_transpose1d conv_transpose2d conv_transpose3d copysign corrcoef cos cosh cosine_embedding_loss cosine_similarity
        count_nonzero cov cross ctc_loss cummax cummin cumprod cumsum cumulative_trapezoid deg2rad dequantize det detach diag
        diag_embed diagflat diagonal diagonal_scatter diff digamma dist div divide dot dropout dsplit dstack einsum embedding
        embedding_bag empty empty_like empty_strided enable_grad eq equal erf erfc erfinv exp exp2 expm1 eye feature_alpha_dropout
        feature_dropout fft fill fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod frac frexp from_dlpack
        from_numpy frombuffer full full_like gather gcd ge Generator geqrf ger get_default_device get_default_dtype
        get_float32_matmul_precision get_rng_state gradient greater greater_equal group_norm gru gt hamming_window hann_window
        hardshrink heaviside hinge_embedding_loss histc histogram histogramdd hsplit hstack hypot i0 igamma igammac imag index_add
        index_copy index_fill index_put index_put_ index_reduce index_select initial_seed inner instance_norm inverse is_complex is_conj
        is_floating_point is_grad_enabled is_neg is_nonzero is_same_size is_signed is_tensor isclose isfinite isin isinf isnan
        isneginf isposinf isreal istft jit kaiser_window kl_div kron kthvalue layer_norm lcm ldexp le lerp less less_equal lgamma
        linspace load log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or
        logical_xor logit logspace logsumexp lstm lt lu lu_solve lu_unpack manual_seed margin_ranking_loss masked_fill
        masked_scatter masked_select matmul matrix_exp matrix_power max max_pool1d max_pool2d max_pool3d maximum mean median
        meshgrid min minimum mm mode moveaxis movedim msort mul multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian
        nanquantile nansum narrow ne neg negative nextafter no_grad nonzero nonzero_static norm normal not_equal numel ones
        ones_like orgqr ormqr outer pairwise_distance pdist permute pinverse pixel_shuffle pixel_unshuffle poisson poisson_nll_loss
        polar polygamma positive pow prelu prod promote_types put qr quantile quantize_per_channel quantize_per_tensor rad2deg rand
        rand_like randint randint_like randn randn_like randperm ravel real reciprocal relu remainder renorm repeat_interleave
        reshape resolve_conj resolve_neg result_type rms_norm roll rot90 round row_stack rrelu rsqrt save scalar_tensor scatter
        scatter_add scatter_reduce searchsorted seed select select_scatter selu set_default_device set_default_dtype
        set_float32_matmul_precision set_printoptions set_rng_state sgn sigmoid sign signbit sin sinc sinh slice_scatter slogdet smm
        softmax sort sparse split split_with_sizes sqrt square squeeze sspaddmm stack std std_mean stft sub subtract sum svd
        swapaxes swapdims t take take_along_dim tan tanh tensor tensor_split tensordot threshold tile topk trace transpose trapezoid
        trapz triangular_solve tril tril_indices triplet_margin_loss triu triu_indices true_divide trunc unbind unflatten unique
        unique_consecutive unravel_index unsafe_chunk unsafe_split unsqueeze vander var var_mean vdot view_as_complex view_as_real
        vsplit vstack where xlogy zeros zeros_like
    """,
    "torch.Tensor": """
        abs_ absolute_ acos_ acosh_ add_ addbmm_ addcdiv_ addcmul_ addmm_ addmv_ addr_ arccos_ arccosh_ arcsin_ arcsinh_ arctan2_
        arctan_ arctanh_ as_strided_ asin_ asinh_ atan2_ atan_ atanh_ backward baddbmm_ bernoulli_ bfloat16 bitwise_and_
        bitwise_left_shift_ bitwise_not_ bitwise_or_ bitwise_right_shift_ bitwise_xor_ bool byte cauchy_ ceil_ char clamp_
        clamp_max_ clamp_min_ clip_ coalesce contiguous copy_ copysign_ cos_ cosh_ cpu cuda cumprod_ cumsum_ data data_ptr deg2rad_
        detach_ device dim div_ divide_ double dtype element_size eq_ erf_ erfc_ erfinv_ exp2_ exp_ expand expand_as expm1_
        exponential_ fill_ fill_diagonal_ fix_ float float_power_ floor_ floor_divide_ fmod_ frac_ gcd_ ge_ geometric_ grad grad_fn
        greater_ greater_equal_ gt_ H half heaviside_ hypot_ i0_ index index_add_ index_copy index_copy_ index_fill_ index_reduce_
        indices int is_coalesced is_contiguous is_leaf is_sparse item itemsize lcm_ ldexp_ le_ lerp_ less_ less_equal_ lgamma_
        log10_ log1p_ log2_ log_ log_normal_ logical_and_ logical_not_ logical_or_ logical_xor_ logit_ long lt_ masked_fill_
        masked_scatter_ mH mT mul_ multiply_ mvlgamma_ nan_to_num_ narrow_copy nbytes ndim ndimension ne_ neg_ negative_ nelement
        new_empty new_full new_ones new_tensor new_zeros nextafter_ normal_ not_equal_ numpy polygamma_ pow_ put_ rad2deg_ random_
        reciprocal_ register_hook relu_ remainder_ renorm_ repeat requires_grad requires_grad_ reshape_as resize resize_ resize_as_
        retain_grad round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_ sgn_ shape short sigmoid_ sign_ sin_ sinc_ sinh_ size
        sparse_dim sparse_mask sqrt_ square_ squeeze_ storage_offset stride sub_ subtract_ sum_to_size swapaxes_ swapdims_ T t_ tan_
        tanh_ to to_dense to_sparse tolist transpose_ tril_ triu_ true_divide_ trunc_ type type_as unfold uniform_ unsqueeze_ values
        view view_as xlogy_ zero_
    """,
    "torch.nn.functional": """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        affine_grid alpha_dropout avg_pool1d avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy
        binary_cross_entropy_with_logits celu celu_ channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d
        conv_transpose3d cosine_embedding_loss cosine_similarity cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu
        elu_ embedding embedding_bag feature_alpha_dropout fold fractional_max_pool2d fractional_max_pool3d gaussian_nll_loss gelu
        glu grid_sample group_norm gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hardtanh_ hinge_embedding_loss
        huber_loss instance_norm interpolate kl_div l1_loss layer_norm leaky_relu leaky_relu_ linear local_response_norm log_softmax
        logsigmoid lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d max_pool2d max_pool3d max_unpool1d max_unpool2d
        max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
        nll_loss normalize one_hot pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu relu
        relu6 relu_ rms_norm rrelu rrelu_ scaled_dot_product_attention selu selu_ sigmoid silu smooth_l1_loss soft_margin_loss
        softmax softmin softplus softshrink softsign tanh tanhshrink threshold threshold_ triplet_margin_loss
        triplet_margin_with_distance_loss unfold
    """,
    "torch.linalg": """
        cholesky cholesky_ex cond cross det diagonal eig eigh eigvals eigvalsh householder_product inv inv_ex ldl_factor
        ldl_factor_ex ldl_solve lstsq lu lu_factor lu_factor_ex lu_solve matmul matrix_exp matrix_norm matrix_power matrix_rank
        multi_dot norm pinv qr slogdet solve solve_ex solve_triangular svd svdvals tensorinv tensorsolve vander vecdot vector_norm
    """,
    "torch.special": """
        airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v
        chebyshev_polynomial_w digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln hermite_polynomial_h
        hermite_polynomial_he i0 i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log1p log_ndtr log_softmax logit logsumexp
        modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri polygamma psi round
        scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u
        shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w sinc softmax spherical_bessel_j0 xlog1py xlogy zeta
    """,
    "torch.nn": """
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d AdaptiveMaxPool2d
        AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BatchNorm1d BatchNorm2d BatchNorm3d BCELoss BCEWithLogitsLoss
        Bilinear Buffer CELU ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d
        Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss
        CTCLoss Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold
        FractionalMaxPool2d FractionalMaxPool3d GaussianNLLLoss GELU GLU GroupNorm GRU GRUCell Hardshrink Hardsigmoid Hardswish
        Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LayerNorm
        LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d
        LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear LocalResponseNorm
        LogSigmoid LogSoftmax LPPool1d LPPool2d LPPool3d LSTM LSTMCell MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d
        MaxUnpool2d MaxUnpool3d Mish Module ModuleDict ModuleList MSELoss MultiheadAttention MultiLabelMarginLoss
        MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss PairwiseDistance Parameter ParameterDict ParameterList PixelShuffle
        PixelUnshuffle PoissonNLLLoss PReLU ReflectionPad1d ReflectionPad2d ReflectionPad3d ReLU ReLU6 ReplicationPad1d
        ReplicationPad2d ReplicationPad3d RMSNorm RNN RNNCell RReLU SELU Sequential Sigmoid SiLU SmoothL1Loss SoftMarginLoss Softmax
        Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold Transformer TransformerDecoder
        TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten
        Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """,
    "torch.nn.init": """
        calculate_gain constant_ dirac_ eye_ kaiming_normal_ kaiming_uniform_ normal_ ones_ orthogonal_ sparse_ trunc_normal_
        uniform_ xavier_normal_ xavier_uniform_ zeros_
    """,
    "torch.nn.utils": """
        clip_grad_norm_ clip_grad_value_ clip_grads_with_norm_ get_total_norm parameters_to_vector vector_to_parameters
    """,
    "torch.optim": """
        Adadelta Adafactor Adagrad Adam Adamax AdamW ASGD LBFGS Muon NAdam Optimizer RAdam RMSprop Rprop SGD SparseAdam
    """,
    "torch.optim.lr_scheduler": """
        ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR LambdaLR LinearLR
        LRScheduler MultiplicativeLR MultiStepLR OneCycleLR PolynomialLR ReduceLROnPlateau SequentialLR StepLR
    """,
    "torch.optim.swa_utils": """
        AveragedModel get_ema_multi_avg_fn get_swa_multi_avg_fn SWALR update_bn
    """,
}


def topics() -> dict[str, dict[str, str]]:
    """Topic -> name -> status, in the order of the pages."""
    return {topic: {name: _status(topic, name) for name in names.split()} for topic, names in NAMES.items()}


def _status(topic: str, name: str) -> str:
    never = name in _NEVER.split()
    found = None if never else _find(topic, name)
    told_by = _TOLD_BY.get(f"{topic}.{name}")
    if found is None or (told_by and told_by not in inspect.signature(found).parameters):
        return "no" if never or name in UNSUPPORTED else "later"
    return "eager only" if name in _READS.split() or _on_host(found, 2) else "yes"


def _find(topic: str, name: str) -> Any:
    """The object of this name in the same place here, None if there is none."""
    owner: Any = importlib.import_module("meganeura")
    try:
        for part in topic.split(".")[1:]:
            inner = getattr(owner, part, None)
            owner = inner if inner is not None else importlib.import_module(f"{owner.__name__}.{part}")
        return getattr(owner, name, None)
    except UnsupportedError:
        return None


def _on_host(found: Any, depth: int) -> bool:
    """Whether a function is a row of the host (see ops/host.py), or calls one: directly, or through `depth` - 1 others."""
    from .ops.host import Host
    from .ops.table import Op

    fn: Callable[..., Any] = inspect.unwrap(found) if inspect.isfunction(found) else found
    if not inspect.isfunction(fn) or not fn.__module__.startswith("meganeura"):
        return False
    cells = [cell.cell_contents for cell in fn.__closure__ or ()]
    if any(isinstance(c, Op) and isinstance(c.archetype, Host) for c in cells):
        return True
    called = [fn.__globals__.get(n) for n in fn.__code__.co_names] if depth else []
    return any(_on_host(f, depth - 1) for f in called if f is not None)


_HEAD = """# PyTorch's names in meganeura

A fixed list of {total} public names of PyTorch, looked up here under the same path (`torch.nn.Linear` as `meganeura.nn.Linear`).
Made by `python -m meganeura support > docs/support.md`; a test compares. **Eager only** functions read values on the host, so
they cannot be used inside `meganeura.compile`. **Later** means not here yet. **No**: complex numbers, sparse and quantized
tensors, Fourier transforms, TorchScript and changing a tensor's memory are left out; asking for them says what to use instead.

"""


def page() -> str:
    """docs/support.md."""
    found = topics()
    counts = {topic: [list(names.values()).count(s) for s in STATUSES] for topic, names in found.items()}
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = [[topic, *map(str, n)] for topic, n in (*counts.items(), ("all", sums))]
    out = _HEAD.format(total=sum(sums)) + "| | " + " | ".join(STATUSES) + " |\n| --- |" + " ---: |" * len(STATUSES) + "\n"
    out += "".join("| " + " | ".join(row) + " |\n" for row in rows)
    for topic, names in found.items():
        out += f"\n## {topic}\n"
        for status in STATUSES:
            these = [f"`{name}`" for name, s in names.items() if s == status]
            if these:
                out += "\n" + textwrap.fill(f"**{status}**: {', '.join(these)}", 120, break_long_words=False, break_on_hyphens=False) + "\n"
    return out
