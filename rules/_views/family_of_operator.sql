-- Families of operators by what they compute. `name` is that of an operator or autograd function in small letters, without
-- namespace, underscores and the ending of backward functions: aten::_softmax and SoftmaxBackward0 are softmax.
CREATE TEMP VIEW family_of_operator AS
SELECT
    n.name,
    v.family
FROM (
    VALUES
    ('logarithm', ['log', 'log2', 'log10', 'log1p', 'xlogy', 'binarycrossentropy']),
    ('root', ['sqrt', 'rsqrt', 'linalgvectornorm', 'norm', 'cdist', 'euclideandist', 'pairwisedistance', 'dist', 'std', 'hypot']),
    ('division', ['div', 'truedivide', 'reciprocal', 'addcdiv']),
    ('softmax', ['softmax', 'logsoftmax', 'scaleddotproductattention', 'scaleddotproductattentionmath', 'scaleddotproductflashattentionforcpu']),
    ('exponential', ['exp', 'exp2', 'expm1', 'sinh', 'cosh', 'logaddexp', 'logsumexp', 'softplus']),
    ('product', [
        'mm', 'bmm', 'addmm', 'baddbmm', 'addbmm', 'matmul', 'linear', 'mv', 'addmv', 'dot', 'einsum', 'convolution', 'conv1d',
        'conv2d', 'conv3d', 'scaledmm', 'groupedmm', 'scaleddotproductflashattention', 'scaleddotproductefficientattention'
    ]),
    ('sum', [
        'sum', 'mean', 'cumsum', 'prod', 'cumprod', 'var', 'varmean', 'mseloss', 'smoothl1loss', 'huberloss', 'nativelayernorm',
        'nativebatchnorm', 'nativegroupnorm', 'fusedrmsnorm', 'indexadd', 'scatteradd'
    ]),
    ('cast', ['tocopy', 'to', 'copy', 'typeas'])
) AS v(family, names)
CROSS JOIN unnest(v.names) AS n(name);
