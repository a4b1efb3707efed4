package verify

import "math"

// zeroFailuresBound is the failure rate that n commands without a failure rule
// out with the given confidence: about 3/n at 95 %.
func zeroFailuresBound(n int, confidence float64) float64 {
	if n <= 0 {
		return 1
	}
	return 1 - math.Pow(1-confidence, 1/float64(n))
}

// rateBounds is the two-sided Clopper-Pearson interval of a rate, of which k in
// n were seen.
func rateBounds(k, n int, confidence float64) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	tail := (1 - confidence) / 2
	high = 1
	if k > 0 {
		// The rate at which k or more are just unlikely.
		low = solve(func(p float64) bool { return 1-binomialCDF(k-1, n, p) > tail })
	}
	if k < n {
		// The rate at which k or fewer are just unlikely.
		high = solve(func(p float64) bool { return binomialCDF(k, n, p) <= tail })
	}
	return low, high
}

// solve returns where f turns from false to true between 0 and 1.
func solve(f func(float64) bool) float64 {
	lo, hi := 0.0, 1.0
	for range 60 {
		mid := (lo + hi) / 2
		if f(mid) {
			hi = mid
		} else {
			lo = mid
		}
	}
	return (lo + hi) / 2
}

// binomialCDF is the probability of at most k in n.
func binomialCDF(k, n int, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n || p <= 0:
		return 1
	case p >= 1:
		return 0
	}
	lnN, _ := math.Lgamma(float64(n + 1))
	sum := 0.0
	for i := 0; i <= k; i++ {
		a, _ := math.Lgamma(float64(i + 1))
		b, _ := math.Lgamma(float64(n - i + 1))
		sum += math.Exp(lnN - a - b + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return min(sum, 1)
}

// repeatsFor is how many commands without a failure it takes until a fault of
// at least that rate would have been missed with probability miss.
func repeatsFor(rate, miss float64) int {
	switch {
	case rate >= 1:
		return 1
	case rate <= 0:
		return math.MaxInt32
	}
	n := math.Log(miss) / math.Log1p(-rate)
	return int(math.Ceil(min(n, math.MaxInt32)))
}
