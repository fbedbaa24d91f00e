package sestransport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/idemmail/idemmail"
)

var (
	errNoMessageID = errors.New("SES answered without a MessageId")
	errNoAnswer    = errors.New("the client ended without an answer")
)

// The codes of receipts where the answer of SES does not give one
// ("MessageRejected"). An answer without a code gives its status ("ses.502"). An
// unknown outcome of a send whose context ended has idemmail.CodeAborted.
const (
	CodeInvalid  = "ses.invalid"  // the message cannot be sent as it is
	CodeCanceled = "ses.canceled" // the context was cancelled
	CodeTimeout  = "ses.timeout"  // the context's deadline has passed, or a timeout of the client
	CodeNetwork  = "ses.network"  // no connection, or a lost one
	CodeClient   = "ses.client"   // the client failed: no credentials, no endpoint
	CodeAnswer   = "ses.answer"   // an answer that cannot be read, or has no MessageId
)

// A verdict is what an error says of a message.
type verdict struct {
	status idemmail.Status
	kind
	response string
}

// A kind is what a receipt says of an error besides the delivery.
type kind struct {
	code      string // empty: the answer's
	category  idemmail.Category
	retryable bool // where nothing was sent
}

// refusals are the codes after which SES has not taken the message: the errors
// of SendEmail and the common errors in the SES API v2 Reference. Codes of 4xx
// answers that are not in here are validation.
var refusals = map[string]kind{
	"TooManyRequestsException": {"", idemmail.CategoryRateLimit, true},
	"LimitExceededException":   {"", idemmail.CategoryRateLimit, true},
	"ThrottlingException":      {"", idemmail.CategoryRateLimit, true},
	"Throttling":               {"", idemmail.CategoryRateLimit, true},

	"AccountSuspendedException":          {"", idemmail.CategoryAuth, false},
	"SendingPausedException":             {"", idemmail.CategoryAuth, true}, // it can be resumed
	"MailFromDomainNotVerifiedException": {"", idemmail.CategoryValidation, false},
	"MessageRejected":                    {"", idemmail.CategoryValidation, false},
	"BadRequestException":                {"", idemmail.CategoryValidation, false},
	"NotFoundException":                  {"", idemmail.CategoryValidation, false},

	"AccessDeniedException":          {"", idemmail.CategoryAuth, false},
	"AccessDenied":                   {"", idemmail.CategoryAuth, false},
	"ExpiredToken":                   {"", idemmail.CategoryAuth, false},
	"ExpiredTokenException":          {"", idemmail.CategoryAuth, false},
	"IncompleteSignature":            {"", idemmail.CategoryAuth, false},
	"IncompleteSignatureException":   {"", idemmail.CategoryAuth, false},
	"InvalidClientTokenId":           {"", idemmail.CategoryAuth, false},
	"InvalidSignatureException":      {"", idemmail.CategoryAuth, false},
	"MissingAuthenticationToken":     {"", idemmail.CategoryAuth, false},
	"NotAuthorized":                  {"", idemmail.CategoryAuth, false},
	"OptInRequired":                  {"", idemmail.CategoryAuth, false},
	"RequestExpired":                 {"", idemmail.CategoryAuth, false},
	"SignatureDoesNotMatch":          {"", idemmail.CategoryAuth, false},
	"UnrecognizedClientException":    {"", idemmail.CategoryAuth, false},
	"RequestTimeoutException":        {"", idemmail.CategoryTimeout, true}, // reading the request timed out
	"RequestEntityTooLargeException": {"", idemmail.CategoryValidation, false},

	codeUnavailable:               {"", idemmail.CategoryProvider, true},
	codeUnavailable + "Exception": {"", idemmail.CategoryProvider, true},
}

const (
	codeUnavailable = "ServiceUnavailable"

	// "The request was aborted before a reply was sent back", with status 400:
	// it does not say that the request was not done.
	codeRequestAborted = "RequestAbortedException"

	// The SDK's, for an answer without a code.
	codeMissing = "UnknownError"
)

// judge says what an error of SendEmail says of the message.
func judge(ctx context.Context, err error, w *wire) verdict {
	if w.notSent() {
		return verdict{status: idemmail.StatusFailed, kind: kindOf(err)}
	}
	status := statusCode(err)
	code, message := apiError(err)
	v := verdict{status: idemmail.StatusUnknown, response: response(status, code, message)}
	refusal, known := refusals[code]
	isClientError := 400 <= status && status <= 499
	isUnavailable := status == 503 && strings.HasPrefix(code, codeUnavailable)
	isFake := status == 0 // an error of SES without its answer is that of another API
	switch {
	case code == codeRequestAborted:
		v.kind = kind{"", idemmail.CategoryProvider, false}
	case known && (isClientError || isUnavailable || isFake):
		v.status, v.kind = idemmail.StatusFailed, refusal
	case isClientError:
		v.status, v.kind = idemmail.StatusFailed, statusKind(status)
	case isFake && isClientFault(err):
		v.status, v.kind = idemmail.StatusFailed, kind{"", idemmail.CategoryValidation, false}
	case isFake:
		v.kind = kindOf(err)
		if !w.reached() && idemmail.ClassifyError(err) == idemmail.NotDelivered {
			v.status = idemmail.StatusFailed
		}
	case status >= 300:
		v.kind = kind{"", idemmail.CategoryProvider, false}
	default:
		if v.kind = kindOf(err); v.code == CodeClient {
			v.kind = kind{CodeAnswer, idemmail.CategoryProvider, false}
		}
	}
	switch {
	case code != "":
		v.code = code
	case v.code == "":
		v.code = fmt.Sprintf("ses.%d", status)
	}
	if v.status == idemmail.StatusUnknown {
		v.retryable = false
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			v.code = idemmail.CodeAborted
		}
	}
	return v
}

// apiError returns the code and the text of SES's answer; none where there is
// no answer, or one without a code.
func apiError(err error) (code, message string) {
	var e smithy.APIError
	if !errors.As(err, &e) || e.ErrorCode() == codeMissing {
		return "", ""
	}
	return e.ErrorCode(), e.ErrorMessage()
}

func isClientFault(err error) bool {
	var e smithy.APIError
	return errors.As(err, &e) && e.ErrorFault() == smithy.FaultClient
}

// statusCode returns the HTTP status of the answer; 0 where there is none. (The
// SDK wraps an error without an answer in a ResponseError of status 0.)
func statusCode(err error) int {
	var e interface{ HTTPStatusCode() int }
	if !errors.As(err, &e) {
		return 0
	}
	return max(0, e.HTTPStatusCode())
}

func statusKind(status int) kind {
	switch status {
	case 401, 403, 407:
		return kind{"", idemmail.CategoryAuth, false}
	case 408:
		return kind{"", idemmail.CategoryTimeout, true}
	case 429:
		return kind{"", idemmail.CategoryRateLimit, true}
	default:
		return kind{"", idemmail.CategoryValidation, false}
	}
}

// kindOf returns the kind of an error without an answer.
func kindOf(err error) kind {
	var (
		invalid   *smithy.InvalidParamsError
		serialize *smithy.SerializationError
		signing   *v4.SigningError
		op        *net.OpError
		dns       *net.DNSError
		sending   *smithyhttp.RequestSendError
		network   net.Error
	)
	switch {
	case errors.As(err, &invalid), errors.As(err, &serialize):
		return kind{CodeInvalid, idemmail.CategoryValidation, false}
	case errors.As(err, &signing):
		return kind{CodeClient, idemmail.CategoryAuth, false}
	case isCertificateError(err):
		return kind{CodeNetwork, idemmail.CategoryNetwork, false}
	case errors.As(err, &dns), errors.As(err, &op) && op.Op == "dial":
		return kind{CodeNetwork, idemmail.CategoryNetwork, true}
	case errors.Is(err, context.Canceled):
		return kind{CodeCanceled, idemmail.CategoryUnknown, true}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return kind{CodeTimeout, idemmail.CategoryTimeout, true}
	case errors.As(err, &network), errors.As(err, &sending), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return kind{CodeNetwork, idemmail.CategoryNetwork, true}
	default:
		return kind{CodeClient, idemmail.CategoryUnknown, true}
	}
}

func isCertificateError(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	return errors.As(err, &verification) || errors.As(err, &record) ||
		errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid)
}

// response renders an answer: "400 MessageRejected: Email address is not
// verified".
func response(status int, code, message string) string {
	var parts []string
	if status > 0 {
		parts = append(parts, fmt.Sprint(status))
	}
	if code != "" {
		parts = append(parts, code)
	}
	s := strings.Join(parts, " ")
	if message != "" {
		s += ": " + message
	}
	return s
}

// refuse is for a message that was not handed to SES.
func (t *Transport) refuse(err error) (*idemmail.Receipt, error) {
	return t.fail(verdict{status: idemmail.StatusFailed, kind: kind{CodeInvalid, idemmail.CategoryValidation, false}}, err)
}

// fail makes the receipt and the error of a verdict.
func (t *Transport) fail(v verdict, err error) (*idemmail.Receipt, error) {
	err = fmt.Errorf("sestransport: %w", err)
	if v.status == idemmail.StatusFailed {
		err = idemmail.NotSent(err)
	} else {
		err = idemmail.MayBeSent(err)
	}
	return &idemmail.Receipt{
		Status:    v.status,
		Transport: t.opts.ID,
		Response:  v.response,
		Code:      v.code,
		Category:  v.category,
		Retryable: v.retryable,
		Detail:    err.Error(),
		At:        now(),
	}, err
}

// succeed makes the receipt of an answer that is no error.
func (t *Transport) succeed(out *sesv2.SendEmailOutput, w *wire) (*idemmail.Receipt, error) {
	if out == nil || strings.TrimSpace(aws.ToString(out.MessageId)) == "" {
		return t.fail(verdict{status: idemmail.StatusUnknown, kind: kind{CodeAnswer, idemmail.CategoryProvider, false}}, errNoMessageID)
	}
	id := *out.MessageId
	r := &idemmail.Receipt{
		Status:     idemmail.StatusSent,
		Transport:  t.opts.ID,
		ProviderID: id,
		MessageID:  messageID(w.requestHost(), id),
		At:         now(),
	}
	if requestID, ok := awsmiddleware.GetRequestIDMetadata(out.ResultMetadata); ok {
		r.Response = "request id " + requestID
	}
	return r, nil
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// messageID returns the Message-ID that SES gives a mail, without angle
// brackets; nothing where the host is not that of SES in a region.
func messageID(host, id string) string {
	host, ok := strings.CutSuffix(host, ".amazonaws.com")
	if !ok || strings.Contains(id, "@") {
		return ""
	}
	service, region, _ := strings.Cut(host, ".")
	if service != "email" && service != "email-fips" || region == "" || strings.Contains(region, ".") {
		return ""
	}
	if region == "us-east-1" {
		region = "email"
	}
	return id + "@" + region + ".amazonses.com"
}
