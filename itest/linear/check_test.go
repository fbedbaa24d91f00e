package linear

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/idemmail/idemmail"
)

// A renewal that was one of several, and refused, explains what others saw as
// if it had been made, or as if not, and nothing else.
func TestDoubtfulRenewal(t *testing.T) {
	const ms = time.Millisecond
	at := func(began, ended time.Duration, q question, a answer) porcupine.Operation {
		q.key, q.token, q.asked, a.answered = "key", "token", began, ended
		return porcupine.Operation{Input: q, Call: int64(began), Output: a, Return: int64(ended)}
	}
	history := func(age time.Duration) []porcupine.Operation {
		return withDoubts([]porcupine.Operation{
			at(0, 1*ms, question{method: "reserve", fingerprint: "f", life: 90 * ms}, answer{token: "token"}),
			at(20*ms, 30*ms, question{method: "renew", life: 50 * ms, many: true}, answer{refused: true}),
			at(23*ms, 24*ms, question{method: "lookup"}, answer{token: "token",
				held: &idemmail.Record{State: idemmail.StatePending, Fingerprint: "f", Age: age}}),
			at(25*ms, 26*ms, question{method: "complete", fingerprint: "f", receipt: "r", life: 90 * ms}, answer{}),
		})
	}
	require.NoError(t, check(apart, history(2*ms)), "made")
	require.NoError(t, check(apart, history(23*ms)), "not made")
	require.Error(t, check(apart, history(25*ms)), "neither")
	require.Error(t, check(apart, history(2 * ms)[:4]), "without the doubt")
}

// A history of which nothing can be explained is described all the same.
func TestNothingIsExplained(t *testing.T) {
	q := question{method: "lookup", key: "key"}
	held := &idemmail.Record{State: idemmail.StatePending}
	require.ErrorContains(t, check(slack{}, []porcupine.Operation{{Input: q, Output: answer{held: held}}}), "not linearizable")
}
