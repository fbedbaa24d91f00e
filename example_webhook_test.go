package idemmail_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idemmail/idemmail"
)

// Guard.Do guards any work. Here a payment provider delivers the same event
// twice, and the handler's work is done once.
func ExampleGuard_Do_webhook() {
	guard, _ := idemmail.NewGuard(idemmail.Options{Namespace: "payments", RequireKey: true})
	booked := 0
	book := func(context.Context) (*idemmail.Receipt, error) {
		booked++
		return nil, nil // done
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		_, err := guard.Do(r.Context(), r.Header.Get("Event-Id"), "", book)
		switch {
		case err == nil:
			w.WriteHeader(http.StatusOK)
		case errors.Is(err, idemmail.ErrInFlight):
			w.WriteHeader(http.StatusConflict) // the provider delivers it again
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	for range 2 {
		request := httptest.NewRequest(http.MethodPost, "/events", nil)
		request.Header.Set("Event-Id", "evt_1042")
		response := httptest.NewRecorder()
		handler(response, request)
		fmt.Println(response.Code)
	}
	fmt.Println("booked:", booked)
	// Output:
	// 200
	// 200
	// booked: 1
}
