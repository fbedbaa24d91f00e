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

// codeInvalidMessage is the receipt's code where a message breaks a rule.
const codeInvalidMessage = "invalid_message"

// A verdict is what an error says of a message.
type verdict struct {
	status    idemmail.Status
	code      string
	category  idemmail.Category
	retryable bool
	response  string
}

// A kind is what a code of SES says besides the delivery.
type kind struct {
	category  idemmail.Category
	retryable bool
}

// refusals are the codes after which SES has not taken the message: the errors
// of SendEmail and the common errors in the SES API v2 Reference. Codes of 4xx
// answers that are not in here are validation.
var refusals = map[string]kind{
	"TooManyRequestsException": {idemmail.CategoryRateLimit, true},
	"LimitExceededException":   {idemmail.CategoryRateLimit, true},
	"ThrottlingException":      {idemmail.CategoryRateLimit, true},
	"Throttling":               {idemmail.CategoryRateLimit, true},

	"AccountSuspendedException":          {idemmail.CategoryAuth, false},
	"SendingPausedException":             {idemmail.CategoryAuth, true}, // it can be resumed
	"MailFromDomainNotVerifiedException": {idemmail.CategoryValidation, false},
	"MessageRejected":                    {idemmail.CategoryValidation, false},
	"BadRequestException":                {idemmail.CategoryValidation, false},
	"NotFoundException":                  {idemmail.CategoryValidation, false},

	"AccessDeniedException":          {idemmail.CategoryAuth, false},
	"AccessDenied":                   {idemmail.CategoryAuth, false},
	"ExpiredToken":                   {idemmail.CategoryAuth, false},
	"ExpiredTokenException":          {idemmail.CategoryAuth, false},
	"IncompleteSignature":            {idemmail.CategoryAuth, false},
	"IncompleteSignatureException":   {idemmail.CategoryAuth, false},
	"InvalidClientTokenId":           {idemmail.CategoryAuth, false},
	"InvalidSignatureException":      {idemmail.CategoryAuth, false},
	"MissingAuthenticationToken":     {idemmail.CategoryAuth, false},
	"NotAuthorized":                  {idemmail.CategoryAuth, false},
	"OptInRequired":                  {idemmail.CategoryAuth, false},
	"RequestExpired":                 {idemmail.CategoryAuth, false},
	"SignatureDoesNotMatch":          {idemmail.CategoryAuth, false},
	"UnrecognizedClientException":    {idemmail.CategoryAuth, false},
	"RequestTimeoutException":        {idemmail.CategoryTimeout, true}, // reading the request timed out
	"RequestEntityTooLargeException": {idemmail.CategoryValidation, false},

	codeUnavailable:               {idemmail.CategoryProvider, true},
	codeUnavailable + "Exception": {idemmail.CategoryProvider, true},
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
func judge(err error, w *wire) verdict {
	if w.notSent() {
		category, retryable := kindOf(err)
		return verdict{status: idemmail.StatusFailed, category: category, retryable: retryable}
	}
	code, message := apiError(err)
	status := statusCode(err)
	v := verdict{status: idemmail.StatusUnknown, code: code, response: response(status, code, message)}
	refusal, known := refusals[code]
	isClientError := 400 <= status && status <= 499
	isUnavailable := status == 503 && strings.HasPrefix(code, codeUnavailable)
	isFake := status == 0 // an error of SES without its answer is that of another API
	switch {
	case code == codeRequestAborted:
		v.category = idemmail.CategoryProvider
	case known && (isClientError || isUnavailable || isFake):
		v.status, v.category, v.retryable = idemmail.StatusFailed, refusal.category, refusal.retryable
	case isFake && isClientFault(err):
		v.status, v.category = idemmail.StatusFailed, idemmail.CategoryValidation
	case isClientError:
		v.status = idemmail.StatusFailed
		v.category, v.retryable = statusKind(status)
	case status >= 500:
		v.category = idemmail.CategoryProvider
	case status > 0:
		v.category, _ = kindOf(err)
		if v.category == idemmail.CategoryUnknown && !errors.Is(err, context.Canceled) {
			v.category = idemmail.CategoryProvider // an answer that cannot be read
		}
	default:
		v.category, v.retryable = kindOf(err)
		if !w.reached() && idemmail.ClassifyError(err) == idemmail.NotDelivered {
			v.status = idemmail.StatusFailed
		}
	}
	v.retryable = v.retryable && v.status == idemmail.StatusFailed
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

func statusKind(status int) (idemmail.Category, bool) {
	switch status {
	case 401, 403, 407:
		return idemmail.CategoryAuth, false
	case 408:
		return idemmail.CategoryTimeout, true
	case 429:
		return idemmail.CategoryRateLimit, true
	default:
		return idemmail.CategoryValidation, false
	}
}

// kindOf returns the kind of an error without an answer, and whether trying
// again may help where nothing was sent.
func kindOf(err error) (idemmail.Category, bool) {
	var (
		invalid   *smithy.InvalidParamsError
		serialize *smithy.SerializationError
		signing   *v4.SigningError
		dial      *net.OpError
		dns       *net.DNSError
		sending   *smithyhttp.RequestSendError
		network   net.Error
	)
	switch {
	case errors.As(err, &invalid), errors.As(err, &serialize):
		return idemmail.CategoryValidation, false
	case errors.As(err, &signing):
		return idemmail.CategoryAuth, false
	case isCertificateError(err):
		return idemmail.CategoryNetwork, false
	case errors.As(err, &dns), errors.As(err, &dial) && dial.Op == "dial":
		return idemmail.CategoryNetwork, true
	case errors.Is(err, context.Canceled):
		return idemmail.CategoryUnknown, true
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return idemmail.CategoryTimeout, true
	case errors.As(err, &network), errors.As(err, &sending), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return idemmail.CategoryNetwork, true
	default:
		return idemmail.CategoryUnknown, true
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
	return t.fail(verdict{status: idemmail.StatusFailed, code: codeInvalidMessage, category: idemmail.CategoryValidation}, err)
}

// fail makes the receipt and the error of a verdict.
func (t *Transport) fail(v verdict, err error) (*idemmail.Receipt, error) {
	err = fmt.Errorf("sestransport: %w", err)
	if v.status == idemmail.StatusFailed {
		err = idemmail.NotSent(err)
	} else {
		err = idemmail.MayBeSent(err)
	}
	if v.category == "" {
		v.category = idemmail.CategoryUnknown
	}
	return &idemmail.Receipt{
		Status:    v.status,
		Transport: t.opts.ID,
		Response:  v.response,
		Code:      v.code,
		Category:  v.category,
		Retryable: v.retryable,
		Detail:    err.Error(),
	}, err
}

// succeed makes the receipt of an answer that is no error.
func (t *Transport) succeed(out *sesv2.SendEmailOutput, w *wire) (*idemmail.Receipt, error) {
	if out == nil || strings.TrimSpace(aws.ToString(out.MessageId)) == "" {
		return t.fail(verdict{status: idemmail.StatusUnknown, category: idemmail.CategoryProvider}, errNoMessageID)
	}
	id := *out.MessageId
	r := &idemmail.Receipt{
		Status:     idemmail.StatusSent,
		Transport:  t.opts.ID,
		ProviderID: id,
		MessageID:  messageID(w.requestHost(), id),
	}
	if requestID, ok := awsmiddleware.GetRequestIDMetadata(out.ResultMetadata); ok {
		r.Response = "request id " + requestID
	}
	return r, nil
}

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
